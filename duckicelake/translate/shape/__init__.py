"""What all files of a table share beside columns and partitions: their order, and the names of columns without ids."""

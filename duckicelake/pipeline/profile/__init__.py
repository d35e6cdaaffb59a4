"""The job that measures tables: columns and their distinct values, which planners use, and how files and snapshots grow."""

"""The job `profile`: statistics of columns and distinct values for query planners, and how files and snapshots grow."""

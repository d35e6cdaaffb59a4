"""The commands of `duckicelake pipeline`, a module for each job. Only `start` and `reports` may be imported without PySpark."""

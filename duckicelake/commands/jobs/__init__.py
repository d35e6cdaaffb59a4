"""The commands of `duckicelake pipeline`, a module for each job. Only `start` may be imported without PySpark."""

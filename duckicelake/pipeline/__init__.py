"""Spark jobs over a lake. They write through the REST catalog like any other client, and read rows of DuckLake for planning.

`common` holds what several jobs share; each other package is one job, started by `duckicelake pipeline …` (`commands/jobs`).
"""

"""Manifests of data files from DuckLake's rows: the code that both the server and Spark executors run."""

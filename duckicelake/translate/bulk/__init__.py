"""Manifests of data files from DuckLake's rows: the one way in which the server makes them, and executors of Spark do."""

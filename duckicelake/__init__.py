"""DuckIceLake: an Iceberg REST catalog whose only truth is a DuckLake.

The rooms, in reading order; a request walks through them once, from the door and back to it:

errors      what can go wrong, in Iceberg's words
values      frozen values, changed the cheap way
iceberg     the format: JSON and bytes, no IO
lake        the state: DuckLake's tables and our notes in Postgres
translate   the bridge, pure: rows become snapshots, manifests and metadata
store       the files: objects, and the Parquet we derive
catalog     the verbs: one function per REST operation
rest        the door: routes, parameters, ETags, the cache of ready answers
backends    the cellar: the embedded Postgres and S3
commands, cli, cli_pipeline   the command line: serve, init, connect, check, smoke, jobs
config, app     settings, read once, and the wiring
pipeline    the guests: Spark jobs that ingest, verify, maintain, measure, publish, import and export over REST
pyiceberg_v3  a gift for a guest: PyIceberg 0.12 writes format version 3; it knows the format, and no other room
"""

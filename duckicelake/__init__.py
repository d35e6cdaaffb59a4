"""DuckIceLake: an Iceberg REST catalog whose only truth is a DuckLake.

Packages, in reading order. A request passes through `rest`, `catalog`, `lake`, `translate` and `store` once, in one direction;
docs/architecture.md shows the way of a load and of a commit.

errors      errors in Iceberg's terms
values      frozen values and how they are changed
iceberg     the format as JSON and bytes; no I/O
lake        DuckLake's tables and our own in Postgres
translate   pure functions between DuckLake's rows and Iceberg's values
store       objects in S3 or on disk, vended keys, Parquet files derived from rows
access      tokens, principals, roles and grants
catalog     one function per catalog operation
rest        the REST API: routes, bodies, errors, ETags, the cache of responses
gateway     other REST catalogs behind routes
embedded    the embedded Postgres and S3 server of `duckicelake serve`
config, store_settings, app   settings, those of a lake's store, and the wiring of all packages
commands, cli, cli_branches, cli_changes, cli_pipeline   the command line
pipeline    PySpark jobs that ingest, maintain, verify, profile, publish, import and export over REST
pyiceberg_v3  lets PyIceberg 0.12 write format version 3; runs in the client's process
"""

"""The commands of `duckicelake`. `cli.py` and `cli_pipeline.py` only parse the arguments and call a function of this package.

Reading order: embedded (settings and the embedded Postgres and S3), prepare (a lake ready to serve), facts and snippets (how to connect),
serve (the HTTP server), check and storage_check, management (principals, roles, grants), smoke, shell, jobs (jobs on Spark).
"""

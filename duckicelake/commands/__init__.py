"""The commands of `duckicelake`. `cli.py` and the other `cli_` modules only parse the arguments and call a function of this package.

Reading order: embedded (settings and the embedded Postgres and S3), prepare (a lake ready to serve), facts and snippets (how to connect),
serve (the HTTP server), check (findings and repairs), management (principals, roles, grants), branches and branch_rows, fill_defaults,
smoke, shell, jobs (jobs on Spark).
"""

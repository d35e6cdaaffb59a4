"""The embedded Postgres and S3 of `duckicelake serve`: start, supervise, stop.

Reading order: home (folder, keys, ports, lock) · processes (start and supervise one child) · object_store (MinIO, SeaweedFS,
and what every S3 must do) · stack (Postgres, and all of it) · ducklake (DuckDB sessions that create and attach lakes).
"""

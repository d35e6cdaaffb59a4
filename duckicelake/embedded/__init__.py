"""The embedded Postgres and S3 of `duckicelake serve`: start, supervise, stop.

Reading order: home (folder, keys, ports, lock) · processes (start and supervise one child) · postgres · object_store (MinIO,
and what every S3 must do) · seaweedfs · stack (all of it) · ducklake (DuckDB sessions that create and attach lakes).
"""

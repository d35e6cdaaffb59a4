"""THE CELLAR: the embedded Postgres and S3 of `duckicelake serve`: start, watch, stop.

Reading order: home (folder, keys, lock) · ports · processes (one child) · keeper (keeps it alive) ·
postgres · certificates · seaweedfs · minio · buckets · stack (all of it) · ducklake (create a lake).
"""

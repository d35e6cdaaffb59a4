"""The keys of a test's S3 in the forms that clients want."""

from duckicelake.backends.buckets import StoreAccess
from duckicelake.backends.ducklake import S3Keys


def format_s3_keys(store: StoreAccess) -> S3Keys:
    """Return the keys as DuckDB's secret takes them."""
    return S3Keys(store.endpoint, store.region, store.access_key_id, store.secret_access_key)

"""The keys of a test's S3 in the forms that clients want."""

from typing import Any

import boto3

from duckicelake.embedded.ducklake import S3Keys
from duckicelake.embedded.object_store import StoreAccess


def format_s3_keys(store: StoreAccess) -> S3Keys:
    """Return the keys as DuckDB's secret takes them."""
    return S3Keys(store.endpoint, store.region, store.access_key_id, store.secret_access_key)


def open_s3(store: StoreAccess) -> Any:
    """AWS's own client, with the keys of the store."""
    keys = {"aws_access_key_id": store.access_key_id, "aws_secret_access_key": store.secret_access_key}
    return boto3.client("s3", endpoint_url=store.endpoint, region_name=store.region, **keys)

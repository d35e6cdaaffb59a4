"""Where a lake's object store is, for the commands that do not import the web stack, as `duckicelake.app` does for servers."""

from duckicelake.config import LakeSettings
from duckicelake.store.s3 import StoreSettings


def read_store_settings(lake: LakeSettings) -> StoreSettings:
    """Return where the lake's object store is, and with which keys."""
    secret = lake.s3_secret_access_key
    return StoreSettings(
        endpoint=lake.s3_endpoint,
        region=lake.s3_region,
        access_key_id=lake.s3_access_key_id,
        secret_access_key=None if secret is None else secret.get_secret_value(),
        signs_payloads=lake.s3_signed_payloads,
    )

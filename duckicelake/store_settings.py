"""The settings of a lake's object store and token service, made from the lake's settings, for servers and commands. Pure."""

from duckicelake.config import LakeSettings
from duckicelake.store.s3 import StoreSettings
from duckicelake.store.vending import StsSettings


def read_store_settings(settings: LakeSettings) -> StoreSettings:
    """Return the address and keys of the lake's object store."""
    secret = settings.s3_secret_access_key
    return StoreSettings(
        endpoint=settings.s3_endpoint,
        region=settings.s3_region,
        access_key_id=settings.s3_access_key_id,
        secret_access_key=None if secret is None else secret.get_secret_value(),
        signs_payloads=settings.s3_signed_payloads,
        public_endpoint=settings.s3_public_endpoint,
    )


def read_sts_settings(settings: LakeSettings, role_arn: str) -> StsSettings:
    """Return the STS settings for vended credentials."""
    return StsSettings(role_arn, settings.sts_endpoint, settings.sts_external_id, settings.vended_lifetime_s)

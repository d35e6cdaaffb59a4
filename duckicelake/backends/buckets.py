"""What every embedded S3 must show at start: it knows our keys, has the bucket, and hands out sessions."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from duckicelake.backends.home import BackendError, Keys
from duckicelake.backends.ports import LOOPBACK

BUCKET, REGION = "lake", "us-east-1"
ROLE_NAME = "duckicelake"
ROLE_ARN = f"arn:aws:iam::000000000000:role/{ROLE_NAME}"
SHORTEST_SESSION_SECONDS = 900


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """How to reach an S3: endpoint URL, region, keys; and the role its STS gives sessions of."""

    endpoint: str
    region: str
    access_key_id: str
    secret_access_key: str
    bucket: str
    role_arn: str

    @classmethod
    def on_loopback(cls, keys: Keys, port: int) -> "StoreAccess":
        """Return the access to the embedded S3 on that port."""
        return cls(f"http://{LOOPBACK}:{port}", REGION, keys.s3_access_key_id, keys.s3_secret_access_key, BUCKET, ROLE_ARN)


def ask_store(access: StoreAccess) -> Callable[[], bool]:
    """Return the question whether the S3 is up and takes our keys."""
    s3, sts = _client("s3", access), _client("sts", access)

    def answers() -> bool:
        try:
            s3.list_buckets()
        except (BotoCoreError, ClientError):
            return False
        try:
            _ask_session(sts, access)
        except (BotoCoreError, ClientError) as error:
            return not is_early(error)
        return True

    return answers


def prepare_bucket(access: StoreAccess) -> None:
    """Make the bucket when it is missing, and see that STS gives a session; a bad configuration shows only here.

    Raises: BackendError: either fails
    """
    try:
        s3 = _client("s3", access)
        names = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
        if access.bucket not in names:
            s3.create_bucket(Bucket=access.bucket)
        _ask_session(_client("sts", access), access)
    except (BotoCoreError, ClientError) as error:
        raise BackendError(f"The embedded S3 at {access.endpoint} runs but is not usable: {error}") from error


def _ask_session(sts: Any, access: StoreAccess) -> None:
    sts.assume_role(
        RoleArn=access.role_arn,
        RoleSessionName="start-up-check",
        DurationSeconds=SHORTEST_SESSION_SECONDS,
        Policy=json.dumps(_read_only(access.bucket)),
    )


def is_early(error: Exception) -> bool:
    """Tell whether a store says that it is not initialized: MinIO takes requests before its users are there."""
    return isinstance(error, ClientError) and "not initialized" in str(error)


def _read_only(bucket: str) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"arn:aws:s3:::{bucket}/start-up-check/*"]}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _client(service: str, access: StoreAccess) -> Any:
    make_client: Callable[..., Any] = getattr(boto3, "client")  # noqa: B009  boto3 makes its clients at run time, without types
    return make_client(
        service,
        endpoint_url=access.endpoint,
        region_name=access.region,
        aws_access_key_id=access.access_key_id,
        aws_secret_access_key=access.secret_access_key,
        config=Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )

"""The embedded S3 and STS: what each must do at start (accept the keys, have the bucket, give sessions), and MinIO.

MinIO runs if it is on the PATH, otherwise SeaweedFS (`seaweedfs.py`).
"""

import json
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from duckicelake.embedded.home import LOOPBACK, EmbeddedError, Home, Keys
from duckicelake.embedded.processes import Command, Service

BUCKET, REGION = "lake", "us-east-1"
ROLE_NAME = "duckicelake"
ROLE_ARN = f"arn:aws:iam::000000000000:role/{ROLE_NAME}"
SHORTEST_SESSION_SECONDS = 900


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Access to an S3: endpoint URL, region, keys, bucket; and the role for sessions of its STS."""

    endpoint: str
    region: str
    access_key_id: str
    secret_access_key: str
    bucket: str
    role_arn: str

    @classmethod
    def on_loopback(cls, keys: Keys, port: int) -> "StoreAccess":
        """Return the access to the embedded S3 on a port."""
        return cls(f"http://{LOOPBACK}:{port}", REGION, keys.s3_access_key_id, keys.s3_secret_access_key, BUCKET, ROLE_ARN)


def build_readiness_check(access: StoreAccess) -> Callable[[], bool]:
    """Return a function that is true once the S3 is up and accepts the keys."""
    s3, sts = _client("s3", access), _client("sts", access)

    def is_ready() -> bool:
        try:
            s3.list_buckets()
        except (BotoCoreError, ClientError):
            return False
        try:
            _request_session(sts, access)
        except (BotoCoreError, ClientError) as error:
            return not is_not_initialized(error)
        return True

    return is_ready


def prepare_bucket(access: StoreAccess) -> None:
    """Create the bucket if it is missing, and request a session from STS, because only that reveals a wrong configuration.

    Raises: EmbeddedError: either fails
    """
    try:
        s3 = _client("s3", access)
        names = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
        if access.bucket not in names:
            s3.create_bucket(Bucket=access.bucket)
        _request_session(_client("sts", access), access)
    except (BotoCoreError, ClientError) as error:
        raise EmbeddedError(f"The embedded S3 at {access.endpoint} runs but is not usable: {error}") from error


def _request_session(sts: Any, access: StoreAccess) -> None:
    sts.assume_role(
        RoleArn=access.role_arn,
        RoleSessionName="start-up-check",
        DurationSeconds=SHORTEST_SESSION_SECONDS,
        Policy=json.dumps(_read_only(access.bucket)),
    )


def is_not_initialized(error: Exception) -> bool:
    """True if the store answers that it is not initialized: MinIO accepts requests before it has loaded its users."""
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


STOP_SECONDS = 20.0
QUIET = {"MINIO_UPDATE": "off", "MINIO_BROWSER": "off", "MINIO_CALLHOME_ENABLE": "off"}
"""No update checks, no call home, no console."""


def list_minio_ports() -> list[str]:
    """Return the names of the ports that MinIO listens on."""
    return ["s3"]


def find_minio() -> Path | None:
    """Return the program `minio` on the PATH, None if there is none."""
    found = shutil.which("minio")
    return None if found is None else Path(found)


def plan_minio(home: Home, keys: Keys, ports: dict[str, int]) -> Service:
    """Return the service that runs MinIO.

    Raises: EmbeddedError: there is no `minio` on the PATH
    """
    program = find_minio()
    if program is None:
        raise EmbeddedError("No program `minio` on the PATH; install it, or use --store seaweedfs.")
    folder = home.make_folder("minio")
    command = Command(
        name="MinIO",
        argv=(str(program), "server", "--quiet", "--address", f"{LOOPBACK}:{ports['s3']}", str(folder)),
        mark=str(folder),
        log_path=home.make_folder("log") / "minio.log",
        pid_path=home.make_folder("run") / "s3.json",
        stop_signal=signal.SIGTERM,
        stop_seconds=STOP_SECONDS,
        environment=QUIET | {"MINIO_ROOT_USER": keys.s3_access_key_id, "MINIO_ROOT_PASSWORD": keys.s3_secret_access_key},
    )
    return Service(command, build_readiness_check(StoreAccess.on_loopback(keys, ports["s3"])))

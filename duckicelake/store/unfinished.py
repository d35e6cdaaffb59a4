"""Objects that somebody began to write in parts and never finished: nobody lists them, and S3 keeps the parts."""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from duckicelake.errors import ServiceUnavailable
from duckicelake.store.place import ObjectAddress, parse_uri
from duckicelake.store.s3 import StoreSettings

UNTOLD = frozenset({"AccessDenied", "NotImplemented", "MethodNotAllowed"})
"""What a store answers that does not tell us of uploads."""
GONE = "NoSuchUpload"


class Uploads:
    """What was begun in the buckets that the settings reach; nothing is contacted before the first use."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._client: Any = None

    def give_up(self, folder_uri: str, before: datetime) -> list[str]:
        """Give up the uploads below a folder to which nothing has come since that time; returns what they were to be.

        None on a local disk, and where the store does not tell us of uploads.
        Raises: ServiceUnavailable: the store does not answer, or refuses us
        """
        folder = parse_uri(folder_uri)
        if not folder.bucket:
            return []
        self._client = self._client or _open_client(self._settings)
        try:
            found = [upload for upload in _list_uploads(self._client, folder) if upload["Initiated"] < before]
            return [folder.format_uri(upload["Key"]) for upload in found if _give_up(self._client, folder.bucket, upload, before)]
        except ClientError as error:
            if _read_code(error) in UNTOLD:
                return []
            raise ServiceUnavailable(f"The object store does not give up uploads below {folder_uri} ({_read_code(error)}).") from None
        except BotoCoreError as error:
            raise ServiceUnavailable(f"The object store does not answer ({type(error).__name__}).") from None


def _list_uploads(client: Any, folder: ObjectAddress) -> Iterator[Any]:
    prefix = f"{folder.key}/" if folder.key else ""
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=folder.bucket, Prefix=prefix):
        yield from page.get("Uploads", ())


def _give_up(client: Any, bucket: str, upload: Any, before: datetime) -> bool:
    """Whether it was given up; not one that goes on, or has ended meanwhile."""
    named = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
    try:
        for page in client.get_paginator("list_parts").paginate(**named):
            if any(part["LastModified"] >= before for part in page.get("Parts", ())):
                return False
        client.abort_multipart_upload(**named)
    except ClientError as error:
        if _read_code(error) == GONE:
            return False
        raise
    return True


def _read_code(error: ClientError) -> str:
    told: Any = error.response
    return str(told.get("Error", {}).get("Code"))


def _open_client(settings: StoreSettings) -> Any:
    make_client: Callable[..., Any] = getattr(boto3, "client")  # noqa: B009  boto3 makes its clients at run time, without types
    return make_client(
        "s3",
        endpoint_url=settings.endpoint,
        region_name=settings.region,
        aws_access_key_id=settings.access_key_id,
        aws_secret_access_key=settings.secret_access_key,
        aws_session_token=settings.session_token,
        config=Config(
            connect_timeout=2,
            read_timeout=20,
            retries={"total_max_attempts": 2},
            s3={"addressing_style": "path" if settings.path_style else "auto"},
        ),
    )

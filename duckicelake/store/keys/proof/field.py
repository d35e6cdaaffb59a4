"""The ground of a proof: tables of nobody below one scratch folder, and clients of the store with different keys."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from duckicelake.errors import ServiceUnavailable
from duckicelake.store.keys.sessions import SessionKeys
from duckicelake.store.s3 import StoreSettings

TABLE, DATA, TWIN = "table", "data", "TABLE"
OWN, OTHER = "own.parquet", "other.parquet"
BESIDE: Mapping[str, str] = {
    "another table": f"sibling/{OTHER}",
    "a table with a longer name": f"{TABLE}0/{OTHER}",
    "a table with a shorter name": f"{TABLE[:-1]}/{OTHER}",
    "what lies above": OTHER,
}
"""Whose they are, and their objects: what a key of the table must not open."""

TWINS_OBJECT = f"{TWIN}/{OTHER}"
OBJECTS = (f"{TABLE}/{OWN}", f"{DATA}/{OWN}", TWINS_OBJECT, *BESIDE.values())
CONTENT = b"of a proof; may be deleted"


@dataclass(frozen=True, slots=True)
class Keys:
    """What a client shows the store: as it is, or with a part of it missing or another's."""

    access_key_id: str | None
    secret_access_key: str | None
    session_token: str | None = None

    @classmethod
    def of(cls, session: SessionKeys) -> "Keys":
        """Return the keys of a session."""
        return cls(session.access_key_id, session.secret_access_key, session.session_token)


@dataclass(frozen=True, slots=True)
class Field:
    """A scratch folder: its bucket and its key, which ends with a slash, and a client with the catalog's own keys."""

    bucket: str
    folder: str
    root: Any

    def name(self, place: str) -> dict[str, str]:
        """Return an object or a place of the folder, as requests name it."""
        return {"Bucket": self.bucket, "Key": self.folder + place}

    def uri(self, place: str) -> str:
        """Return the URI of an object or a place of the folder."""
        return f"s3://{self.bucket}/{self.folder}{place}"

    def lay_out(self) -> None:
        """Write the objects. Raises: ServiceUnavailable: the catalog's own keys do not allow it."""
        with_own_keys("PUT below ICEBERG_PATH", lambda: [self.root.put_object(**self.name(place), Body=CONTENT) for place in OBJECTS])

    def list_changed(self) -> list[str]:
        """Return the objects that are not as they were laid out, and those that are new."""
        found = {key: self.root.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in self._list_keys()}
        laid = {self.folder + place: CONTENT for place in OBJECTS}
        return sorted(key.removeprefix(self.folder) for key in found.keys() | laid.keys() if found.get(key) != laid.get(key))

    def clear(self) -> list[str]:
        """Remove everything below the folder, and return the keys that are still there."""
        for key in list(self._list_keys()):
            self.root.delete_object(Bucket=self.bucket, Key=key)
        return list(self._list_keys())

    def end_uploads(self) -> None:
        """End the uploads below the folder that were begun and not completed."""
        pages = self.root.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=self.folder)
        for upload in [upload for page in pages for upload in page.get("Uploads", ())]:
            self.root.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def _list_keys(self) -> Iterator[str]:
        pages = self.root.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.folder)
        return (found["Key"] for page in pages for found in page.get("Contents", ()))


def open_client(store: StoreSettings, keys: Keys | None) -> Any:
    """Return an S3 client with these keys; None: nobody's. Keys of None: those of the environment."""
    make_client: Callable[..., Any] = getattr(boto3, "client")  # noqa: B009  boto3 makes its clients at run time, without types
    shown = keys or Keys(None, None)
    nobody = {"signature_version": UNSIGNED} if keys is None else {}
    return make_client(
        "s3",
        endpoint_url=store.endpoint,
        region_name=store.region,
        aws_access_key_id=shown.access_key_id,
        aws_secret_access_key=shown.secret_access_key,
        aws_session_token=shown.session_token,
        config=Config(
            connect_timeout=2,
            read_timeout=20,
            retries={"total_max_attempts": 1},
            s3={"addressing_style": "path" if store.path_style else "auto"},
            **nobody,
        ),
    )


def with_own_keys(what: str, call: Callable[[], object]) -> None:
    """Do something as the catalog itself. Raises: ServiceUnavailable: the store does not let it."""
    try:
        call()
    except ClientError as error:
        told: Any = error.response
        raise ServiceUnavailable(f"The catalog's own keys may not {what} ({told['Error'].get('Code')}).") from None
    except BotoCoreError as error:
        raise ServiceUnavailable(f"The object store does not answer ({type(error).__name__}).") from None

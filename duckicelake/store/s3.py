"""A bucket of an S3 store through obstore, and stale multipart uploads through boto3 (obstore cannot list them).

`Objects` opens a bucket when it is first used, and uses it on all threads. Only `duckicelake check --repair` and the job `maintain` abort
uploads.
"""

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

import boto3
import obstore
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from duckicelake.errors import NotFound, ServiceUnavailable, Unsupported
from duckicelake.store.uris import ObjectAddress, parse_uri

if TYPE_CHECKING:
    # These exist for the type checker only.
    from obstore import ObjectMeta
    from obstore.store import ClientConfig, RetryConfig, S3Config, S3Credential

CONNECT_SECONDS = 1
ANSWER_SECONDS = 10
PROBE_SECONDS = 2
TRANSFER_SECONDS = 120
RETRY_SECONDS = 2
LIST_CHUNK = 1000
PART_BYTES, PARTS_AT_ONCE = 8 * 1024 * 1024, 2
OUT_OF_RANGE = frozenset({"InvalidRange", "416"})


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Access to S3. Without keys, those of the environment (profile, instance role) are used; without endpoint, AWS.

    `session_token` belongs to temporary credentials; those are not used for signing or vending.
    `signs_payloads`: also sign a hash of the payload over TLS or loopback; over other connections it is always signed.
    `public_endpoint`: the endpoint for clients, if they cannot reach `endpoint`.
    """

    endpoint: str | None
    region: str
    access_key_id: str | None
    secret_access_key: str | None = field(repr=False)
    path_style: bool = True
    session_token: str | None = field(default=None, repr=False)
    signs_payloads: bool = True
    public_endpoint: str | None = None

    @property
    def client_endpoint(self) -> str | None:
        """The endpoint in responses to clients; None for AWS."""
        return self.public_endpoint or self.endpoint


class S3Bucket:
    """One bucket. A dead endpoint is reported within about three seconds; messages never contain credentials."""

    def __init__(self, settings: StoreSettings, bucket: str) -> None:
        self._bucket = bucket
        self._endpoint = settings.endpoint or f"s3.{settings.region}.amazonaws.com"
        self._settings = settings
        self._client = _open_client(settings, bucket, ANSWER_SECONDS)

    @cached_property
    def _probe(self) -> S3Store:
        """The client that only checks if the store answers. Opened when it is needed: each client reads all root certificates."""
        return _open_client(self._settings, self._bucket, PROBE_SECONDS)

    def read(self, key: str) -> bytes:
        return self.open(key)[1]()

    def open(self, key: str) -> tuple[int, Callable[[], bytes]]:
        with self._translated_errors("read", key):
            found = obstore.get(self._client, key)

        def read() -> bytes:
            with self._translated_errors("read", key):
                return found.bytes().to_bytes()

        return found.meta["size"], read

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
        with self._translated_errors("read", key):
            return [part.to_bytes() for part in obstore.get_ranges(self._client, key, starts=starts, lengths=lengths)]

    def find_size(self, key: str) -> int | None:
        try:
            with self._translated_errors("look up", key):
                return obstore.head(self._client, key)["size"]
        except NotFound:
            return None

    def find_etag(self, key: str) -> str | None:
        try:
            with self._translated_errors("look up", key):
                return obstore.head(self._client, key)["e_tag"]
        except NotFound:
            return None

    def put_new(self, key: str, content: bytes) -> bool:
        try:
            with self._translated_errors("write", key):
                obstore.put(self._client, key, content, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        with (
            self._translated_errors("write", key),
            obstore.open_writer(self._client, key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE) as writer,
        ):
            for part in parts:
                writer.write(part)

    def replace(self, key: str, content: bytes, etag: str) -> str | None:
        try:
            with self._translated_errors("replace", key):
                return obstore.put(self._client, key, content, mode={"e_tag": etag})["e_tag"]
        except (PreconditionError, NotFound):
            return None

    def delete(self, key: str) -> None:
        with self._translated_errors("delete", key):
            obstore.delete(self._client, key)

    def list_under(self, prefix: str) -> Iterator[tuple[str, int]]:
        yield from ((meta["path"], meta["size"]) for meta in self._list(prefix))

    def list_modified(self, prefix: str) -> Iterator[tuple[str, datetime]]:
        yield from ((meta["path"], meta["last_modified"]) for meta in self._list(prefix))

    def _list(self, prefix: str) -> "Iterator[ObjectMeta]":
        chunks = iter(obstore.list(self._client, prefix or None, chunk_size=LIST_CHUNK))
        while True:
            with self._translated_errors("list", prefix):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield from chunk

    def check(self) -> None:
        with self._translated_errors("list", ""):
            next(iter(obstore.list(self._probe, "reachability-probe", chunk_size=1)), None)

    @contextmanager
    def _translated_errors(self, verb: str, key: str) -> Generator[None]:
        """Translate obstore's errors into the catalog's; failed preconditions pass through to the caller."""
        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            raise
        except FileNotFoundError as error:
            if verb == "write":
                raise self._unavailable(verb, key, error) from None
            raise NotFound(f"The object s3://{self._bucket}/{key} is missing at {self._endpoint}.") from None
        except (BaseError, OSError) as error:
            if _reason(str(error)) in OUT_OF_RANGE:
                raise Unsupported(f"The object s3://{self._bucket}/{key} is shorter than it is said to be.") from None
            raise self._unavailable(verb, key, error) from None

    def _unavailable(self, verb: str, key: str, error: Exception) -> ServiceUnavailable:
        return ServiceUnavailable(
            f"The object store at {self._endpoint} does not let us {verb} s3://{self._bucket}/{key}"
            f" ({_reason(str(error))}); check that it runs, that the bucket exists and that the keys are right."
        )


def _reason(answer: str) -> str:
    """Return the error code of a store's answer; the rest may contain an access key."""
    for pattern in (r"<Code>(\w{1,64})</Code>", r"status code: (\d{3})", r"kind: (\w{1,32})"):
        if found := re.search(pattern, answer):
            return found.group(1)
    return "no reason given"


def _open_client(settings: StoreSettings, bucket: str, answer_seconds: int) -> S3Store:
    options: ClientConfig = {
        "allow_http": (settings.endpoint or "").startswith("http://"),
        "connect_timeout": timedelta(seconds=CONNECT_SECONDS),
        "read_timeout": timedelta(seconds=answer_seconds),
        "timeout": timedelta(seconds=TRANSFER_SECONDS),
    }
    retry: RetryConfig = {
        "max_retries": 2,
        "retry_timeout": timedelta(seconds=RETRY_SECONDS),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(milliseconds=400), "base": 2},
    }
    config = _format_config(settings, bucket)
    if settings.access_key_id is None or settings.secret_access_key is None:
        return S3Store(bucket, config=config, client_options=options, retry_config=retry)
    # obstore would combine keys in `config` with AWS_SESSION_TOKEN of the environment, which belongs to other keys.
    credential: S3Credential = {
        "access_key_id": settings.access_key_id,
        "secret_access_key": settings.secret_access_key,
        "token": settings.session_token,
        "expires_at": None,
    }
    return S3Store(bucket, config=config, client_options=options, retry_config=retry, credential_provider=lambda: credential)


def _format_config(settings: StoreSettings, bucket: str) -> "S3Config":
    config: S3Config = {
        "region": settings.region,
        "virtual_hosted_style_request": not settings.path_style,
        "disable_bulk_delete": True,
        "skip_signature": False,
        "unsigned_payload": not settings.signs_payloads and is_guarded(settings.endpoint),
    }
    if settings.endpoint:
        host = settings.endpoint if settings.path_style else _with_bucket(settings.endpoint, bucket)
        # AWS_ENDPOINT_URL_S3 of the environment takes precedence over `endpoint`, so both are set.
        config["endpoint"] = config["aws_endpoint_url_s3"] = host
    return config


def is_guarded(endpoint: str | None) -> bool:
    """True if the connection to an endpoint (None: AWS) cannot be tampered with: TLS or loopback."""
    where = urlsplit(endpoint or "https://")
    if where.scheme == "https" or where.hostname == "localhost":
        return True
    try:
        return ip_address(where.hostname or "").is_loopback
    except ValueError:
        return False


def _with_bucket(endpoint: str, bucket: str) -> str:
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(netloc=f"{bucket}.{parts.netloc}"))


UNSUPPORTED = frozenset({"AccessDenied", "NotImplemented", "MethodNotAllowed"})
"""Error codes of stores that do not list multipart uploads."""
NO_SUCH_UPLOAD = "NoSuchUpload"


class Uploads:
    """Multipart uploads in the buckets that the settings give access to; nothing is contacted before the first use."""

    def __init__(self, settings: StoreSettings) -> None:
        self._settings = settings
        self._client: Any = None

    def abort_stale(self, folder_uri: str, before: datetime) -> list[str]:
        """Abort the uploads below a folder that got no part since a time, and return the URIs of their objects.

        S3 keeps the parts of such uploads forever. Returns nothing for a local disk and for stores that do not list uploads.
        Raises: ServiceUnavailable: the store does not answer, or refuses access
        """
        folder = parse_uri(folder_uri)
        if not folder.bucket:
            return []
        self._client = self._client or _open_boto_client(self._settings)
        try:
            found = [upload for upload in _list_uploads(self._client, folder) if upload["Initiated"] < before]
            return [folder.format_uri(upload["Key"]) for upload in found if _abort_if_stale(self._client, folder.bucket, upload, before)]
        except ClientError as error:
            if _read_code(error) in UNSUPPORTED:
                return []
            raise ServiceUnavailable(f"The object store does not give up uploads below {folder_uri} ({_read_code(error)}).") from None
        except BotoCoreError as error:
            raise ServiceUnavailable(f"The object store does not answer ({type(error).__name__}).") from None


def _list_uploads(client: Any, folder: ObjectAddress) -> Iterator[Any]:
    prefix = f"{folder.key}/" if folder.key else ""
    for page in client.get_paginator("list_multipart_uploads").paginate(Bucket=folder.bucket, Prefix=prefix):
        yield from page.get("Uploads", ())


def _abort_if_stale(client: Any, bucket: str, upload: Any, before: datetime) -> bool:
    """Abort an upload. True if it was aborted; false if it got parts since, or has ended."""
    named = {"Bucket": bucket, "Key": upload["Key"], "UploadId": upload["UploadId"]}
    try:
        for page in client.get_paginator("list_parts").paginate(**named):
            if any(part["LastModified"] >= before for part in page.get("Parts", ())):
                return False
        client.abort_multipart_upload(**named)
    except ClientError as error:
        if _read_code(error) == NO_SUCH_UPLOAD:
            return False
        raise
    return True


def _read_code(error: ClientError) -> str:
    response: Any = error.response
    return str(response.get("Error", {}).get("Code"))


def _open_boto_client(settings: StoreSettings) -> Any:
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

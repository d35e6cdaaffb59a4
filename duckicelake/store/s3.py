"""A bucket of an S3 store, spoken to through obstore."""

import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import TYPE_CHECKING
from urllib.parse import urlsplit, urlunsplit

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import S3Store

from duckicelake.errors import NotFound, ServiceUnavailable, Unsupported

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
    """How to reach S3. No keys: those of the environment (profile, instance role) are used; no endpoint: AWS.

    `session_token` belongs to keys that are lent for a time; nothing is signed or lent on with them.
    `signs_payloads`: a hash of what is written is signed too where the connection itself guards it; elsewhere it always is.
    `public_endpoint`: where clients reach it, if they do not reach `endpoint`.
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
        """The endpoint that clients are told; None for AWS."""
        return self.public_endpoint or self.endpoint


class S3Bucket:
    """One bucket. A dead endpoint is reported within about three seconds, and never with a key in the message."""

    def __init__(self, settings: StoreSettings, bucket: str) -> None:
        self._bucket = bucket
        self._endpoint = settings.endpoint or f"s3.{settings.region}.amazonaws.com"
        self._client = _open_client(settings, bucket, ANSWER_SECONDS)
        self._probe = _open_client(settings, bucket, PROBE_SECONDS)

    def read(self, key: str) -> bytes:
        return self.ask(key)[1]()

    def ask(self, key: str) -> tuple[int, Callable[[], bytes]]:
        with self._telling("read", key):
            found = obstore.get(self._client, key)

        def read() -> bytes:
            with self._telling("read", key):
                return found.bytes().to_bytes()

        return found.meta["size"], read

    def read_ranges(self, key: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        starts, lengths = [start for start, _ in ranges], [length for _, length in ranges]
        with self._telling("read", key):
            return [part.to_bytes() for part in obstore.get_ranges(self._client, key, starts=starts, lengths=lengths)]

    def find_size(self, key: str) -> int | None:
        try:
            with self._telling("look up", key):
                return obstore.head(self._client, key)["size"]
        except NotFound:
            return None

    def find_etag(self, key: str) -> str | None:
        try:
            with self._telling("look up", key):
                return obstore.head(self._client, key)["e_tag"]
        except NotFound:
            return None

    def put_new(self, key: str, content: bytes) -> bool:
        try:
            with self._telling("write", key):
                obstore.put(self._client, key, content, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def put_parts(self, key: str, parts: Iterator[bytes]) -> None:
        with (
            self._telling("write", key),
            obstore.open_writer(self._client, key, buffer_size=PART_BYTES, max_concurrency=PARTS_AT_ONCE) as writer,
        ):
            for part in parts:
                writer.write(part)

    def replace(self, key: str, content: bytes, etag: str) -> str | None:
        try:
            with self._telling("replace", key):
                return obstore.put(self._client, key, content, mode={"e_tag": etag})["e_tag"]
        except (PreconditionError, NotFound):
            return None

    def delete(self, key: str) -> None:
        with self._telling("delete", key):
            obstore.delete(self._client, key)

    def list_under(self, prefix: str) -> Iterator[tuple[str, int]]:
        yield from ((meta["path"], meta["size"]) for meta in self._list(prefix))

    def list_modified(self, prefix: str) -> Iterator[tuple[str, datetime]]:
        yield from ((meta["path"], meta["last_modified"]) for meta in self._list(prefix))

    def _list(self, prefix: str) -> "Iterator[ObjectMeta]":
        chunks = iter(obstore.list(self._client, prefix or None, chunk_size=LIST_CHUNK))
        while True:
            with self._telling("list", prefix):
                chunk = next(chunks, None)
            if chunk is None:
                return
            yield from chunk

    def check(self) -> None:
        with self._telling("list", ""):
            next(iter(obstore.list(self._probe, "reachability-probe", chunk_size=1)), None)

    @contextmanager
    def _telling(self, verb: str, key: str) -> Generator[None]:
        """Turn what obstore says into our words; a lost precondition passes through to the caller."""
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


def _reason(told: str) -> str:
    """The few words of a store's answer that are safe to repeat: the rest may quote an access key."""
    for pattern in (r"<Code>(\w{1,64})</Code>", r"status code: (\d{3})", r"kind: (\w{1,32})"):
        if found := re.search(pattern, told):
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
    # Keys given in `config` would be joined with AWS_SESSION_TOKEN of the environment, which belongs to other keys.
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
        # AWS_ENDPOINT_URL_S3 of the environment would win over `endpoint`, so both are said.
        config["endpoint"] = config["aws_endpoint_url_s3"] = host
    return config


def is_guarded(endpoint: str | None) -> bool:
    """Tell whether nobody can change what is on its way to this endpoint (None: AWS): it goes by TLS, or stays on this machine."""
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

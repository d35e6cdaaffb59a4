"""Objects as the driver and executors reach them without Spark: files of tables, and S3 with the keys that AWS's tools would use.

`ingest`, `import`, `export` and `verify` use it in the driver; `publish` and `verify` open `StoredFiles` in executors. Objects are
read, listed and written, never deleted. It never uses Postgres.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from pyarrow import NativeFile
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, S3FileSystem
from pyspark.sql import DataFrame, SparkSession

from duckicelake.errors import BadRequest, Forbidden, ServiceUnavailable, Unsupported
from duckicelake.pipeline.common.rest import RestCatalog


@dataclass(frozen=True, slots=True)
class Child:
    """An entry of a folder."""

    name: str
    is_folder: bool


@dataclass(frozen=True, slots=True)
class StoredFiles:
    """The files of one store, by URI."""

    files: FileSystem

    def read(self, uri: str) -> bytes:
        """Return the bytes of an object. Raises: ServiceUnavailable: the store does not give it."""
        try:
            with self.files.open_input_stream(_get_path(uri)) as source:
                return source.read()
        except OSError as error:
            raise ServiceUnavailable(f"cannot read {uri}: {error}") from error

    def open(self, uri: str) -> NativeFile:
        """Return an object to read parts of. Raises: OSError: the store does not give it"""
        return self.files.open_input_file(_get_path(uri))

    def find_size(self, uri: str) -> int | None:
        """Return how large an object is, in bytes; None: it is not there. Raises: ServiceUnavailable: the store does not say"""
        try:
            info = self.files.get_file_info(_get_path(uri))
        except OSError as error:
            raise ServiceUnavailable(f"cannot look for {uri}: {error}") from error
        return info.size if info.type == FileType.File else None

    def list_folder(self, uri: str) -> list[Child]:
        """Return the entries of a folder, by name; none if it does not exist. Raises: ServiceUnavailable: the store does not answer."""
        try:
            found = self.files.get_file_info(FileSelector(_get_path(uri).rstrip("/"), allow_not_found=True))
        except OSError as error:
            raise ServiceUnavailable(f"cannot list {uri}: {error}") from error
        return sorted((Child(info.base_name, info.type == FileType.Directory) for info in found), key=lambda child: child.name)

    def list_below(self, uri: str) -> list[tuple[str, int, int | None]]:
        """Return every file below a folder, by path, with its size and when it was last written. Raises: as `list_folder`"""
        try:
            found = self.files.get_file_info(FileSelector(_get_path(uri).rstrip("/"), allow_not_found=True, recursive=True))
        except OSError as error:
            raise ServiceUnavailable(f"cannot list {uri}: {error}") from error
        return sorted((info.path, info.size, info.mtime_ns) for info in found if info.type == FileType.File)

    def write(self, uri: str, content: bytes) -> None:
        """Put an object under a name that no other writer uses. Raises: ServiceUnavailable: the store does not take it."""
        path = _get_path(uri)
        try:
            # Only a disk has folders.
            if isinstance(self.files, LocalFileSystem):
                self.files.create_dir(path.rpartition("/")[0])
            with self.files.open_output_stream(path) as sink:
                sink.write(content)
        except OSError as error:
            raise ServiceUnavailable(f"cannot write {uri}: {error}") from error


def open_objects(location: str, catalog: RestCatalog, given: Mapping[str, str]) -> StoredFiles:
    """Return the store of a location; `given` is what the catalog says of it.

    Raises: Unsupported: it is neither S3 nor a folder
    """
    scheme = urlsplit(location).scheme
    if scheme in ("", "file"):
        return StoredFiles(LocalFileSystem())
    if not scheme.startswith("s3"):
        raise Unsupported(f"{location} is neither on S3 nor in a folder")
    endpoint = urlsplit(given.get("s3.endpoint") or catalog.s3_endpoint or "")
    return StoredFiles(
        S3FileSystem(
            access_key=given.get("s3.access-key-id") or catalog.s3_access_key_id,
            secret_key=given.get("s3.secret-access-key") or catalog.s3_secret_access_key,
            session_token=given.get("s3.session-token"),
            region=given.get("client.region") or catalog.s3_region,
            scheme="http" if endpoint.scheme == "http" else "https",
            endpoint_override=endpoint.netloc or None,
            # one request for a small object, not the three of an upload in parts
            allow_delayed_open=True,  # pyright: ignore[reportCallIssue]  the stubs are of an older release
        )
    )


def _get_path(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    if separator:
        return rest
    return scheme.removeprefix("file:")


def find_local_path(uri: str) -> Path | None:
    """Return where a file lies on this machine, None when it does not."""
    if not uri.startswith("file:"):
        return None
    path = Path(get_local_path(uri))
    return path if path.is_file() else None


def get_local_path(path: str) -> str:
    """Return the path of a file on this machine, which Spark writes with one slash behind `file:`, or three."""
    return "/" + path.removeprefix("file:").lstrip("/")


SCHEMES = ("s3://", "s3a://")
ENDPOINT, REGION, KEY_ID, SECRET, TOKEN = "s3.endpoint", "client.region", "s3.access-key-id", "s3.secret-access-key", "s3.session-token"
NAMES = (ENDPOINT, REGION, KEY_ID, SECRET, TOKEN)
"""Iceberg's names of what a store is reached by."""

_OF_AWS = re.compile(r"\.amazonaws\.com(\.cn)?$")
_WILD = re.compile(r"[*?\[{\\]")
_PLAIN = "/-_.~!*'()@,;:$&+="
"""What Java leaves in the path of a URI as it is, in addition to letters and digits."""


@dataclass(frozen=True, slots=True)
class S3Credentials:
    """Access key of S3; temporary keys come with a session token."""

    key_id: str
    secret: str
    token: str | None = None

    def __repr__(self) -> str:
        return f"S3Credentials({self.key_id})"


@dataclass(frozen=True, slots=True)
class S3Store:
    """A store, and whose keys open it. `endpoint` None: Amazon's own."""

    client: Any
    keys: S3Credentials
    region: str
    endpoint: str | None

    def list_objects(self, source: str) -> Iterator[tuple[str, int, int, str]]:
        """URI, size, time of change in ms and ETag of each object that a URI or a pattern means, with all below.

        Names that begin with `_` or `.` are passed over, as Spark does.
        Raises: NoSource; BadRequest: a Delta table's; Forbidden: the keys do not open it; ServiceUnavailable: no store answers
        """
        bucket, pattern = _split(source)
        meant = (
            re.compile(f"{translate_pattern(pattern.rstrip('/'))}(?P<below>/.*)?", re.DOTALL) if pattern else re.compile("(?P<below>.*)")
        )
        first = _WILD.split(pattern, maxsplit=1)[0].rstrip("/")
        count, logs, parquet = 0, set[str](), dict[str, str]()
        try:
            for page in self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=first):
                for found in page.get("Contents", ()):
                    key = found["Key"]
                    folder, is_log, _ = key.partition(f"/{DELTA_LOG}/")
                    if is_log:
                        logs.add(folder)
                    match = meant.fullmatch(key)
                    if match is not None and not is_hidden(key, match["below"] or ""):
                        if key.endswith(".parquet"):
                            parquet[key.rpartition("/")[0]] = key
                        count += 1
                        modified_ms = int(found["LastModified"].timestamp() * 1000)
                        yield f"s3://{bucket}/{encode_path(key)}", found["Size"], modified_ms, found["ETag"].strip('"')
        except ClientError as error:
            raise _explain(source, error) from error
        except BotoCoreError as error:
            raise ServiceUnavailable(f"{source}: {error}") from error
        for key in parquet.values():
            check_counted(key, logs)
        if not count:
            raise NoSource(f"there is no {source}")

    def list_files(self, spark: SparkSession, source: str) -> DataFrame:
        """Return the same as a frame. Raises: as `list_objects`"""
        return spark.createDataFrame(list(self.list_objects(source)), LISTED)

    def format_settings(self) -> dict[str, str]:
        """Return the settings of the store for one read of Spark."""
        kind = "SimpleAWSCredentialsProvider" if self.keys.token is None else "TemporaryAWSCredentialsProvider"
        settings = {
            **{f"fs.{scheme}.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem" for scheme in ("s3", "s3a")},
            "fs.s3a.aws.credentials.provider": f"org.apache.hadoop.fs.s3a.{kind}",
            "fs.s3a.access.key": self.keys.key_id,
            "fs.s3a.secret.key": self.keys.secret,
            "fs.s3a.endpoint.region": self.region,
        }
        if self.keys.token is not None:
            settings["fs.s3a.session.token"] = self.keys.token
        if self.endpoint is not None:
            settings |= {"fs.s3a.endpoint": self.endpoint, "fs.s3a.path.style.access": "true"}
        return settings

    def open_files(self) -> S3FileSystem:
        """Return the objects, for a look at a few bytes."""
        endpoint = urlsplit(self.endpoint or "")
        return S3FileSystem(
            access_key=self.keys.key_id,
            secret_key=self.keys.secret,
            session_token=self.keys.token,
            region=self.region,
            scheme="http" if endpoint.scheme == "http" else "https",
            endpoint_override=endpoint.netloc or None,
        )


def open_store(options: Mapping[str, str]) -> S3Store:
    """Return the store that the options, else the variables and files of AWS's tools name.

    Raises: BadRequest: no keys are to be found; the message shows none
    """
    make_session: Any = getattr(boto3, "Session")  # noqa: B009  boto3 makes its clients at run time, without types
    try:
        session = make_session(options.get(KEY_ID), options.get(SECRET), options.get(TOKEN), options.get(REGION))
        found = session.get_credentials()
        region = session.region_name or "us-east-1"
        client = session.client("s3", region_name=region, endpoint_url=options.get(ENDPOINT))
        keys = None if found is None else found.get_frozen_credentials()
    except (BotoCoreError, ValueError) as error:
        raise BadRequest(f"the keys to S3 cannot be found: {error}") from error
    if keys is None:
        raise BadRequest("there are no keys to S3: set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or write --properties")
    endpoint: str = client.meta.endpoint_url
    is_other = _OF_AWS.search(urlsplit(endpoint).hostname or "") is None
    return S3Store(client, S3Credentials(keys.access_key, keys.secret_key, keys.token), region, endpoint if is_other else None)


def name_source(source: str) -> str:
    """Return a source with the scheme `s3` in place of `s3a`."""
    return "s3://" + source.partition("://")[2]


def encode_path(key: str) -> str:
    """Return a key as Spark writes it in the URIs of rows."""
    return "".join(letter if ord(letter) > 127 else quote(letter, safe=_PLAIN) for letter in key)


def is_hidden(key: str, below: str) -> bool:
    """Return True if Spark passes over a key, of which `below` lies below the folder that is read."""
    names = [*below.split("/")[:-1], key.rpartition("/")[2]]
    return names[-1] == "" or any(name.startswith(".") or (name.startswith("_") and "=" not in name) for name in names)


def translate_pattern(pattern: str) -> str:
    """Return a pattern of Spark's as a regular expression. Raises: BadRequest: a bracket is not closed"""
    said, at, depth = "", 0, 0
    while at < len(pattern):
        letter = pattern[at]
        if letter == "[":
            end = pattern.find("]", at + 2)
            if end < 0:
                raise BadRequest(f"the pattern {pattern} has a [ without ]")
            inner = pattern[at + 1 : end].replace("\\", "\\\\").replace("[", "\\[")
            said += f"[^{inner[1:]}]" if inner[0] in "^!" else f"[{inner}]"
            at = end
        elif letter == "\\" and at + 1 < len(pattern):
            at += 1
            said += re.escape(pattern[at])
        else:
            depth += {"{": 1, "}": -1}.get(letter, 0)
            inside = {"{": "(?:", "}": ")", "*": "[^/]*", "?": "[^/]"} | ({",": "|"} if depth else {})
            said += inside.get(letter, re.escape(letter))
        at += 1
    if depth:
        raise BadRequest(f"the pattern {pattern} has a {{ without }}")
    return said


def _split(source: str) -> tuple[str, str]:
    bucket, _, pattern = source.partition("://")[2].partition("/")
    if not bucket:
        raise BadRequest(f"{source} names no bucket: write s3://BUCKET/PATH")
    return bucket, pattern


def _explain(source: str, error: ClientError) -> Exception:
    told: Any = error.response
    code, status = str(told.get("Error", {}).get("Code")), int(told.get("ResponseMetadata", {}).get("HTTPStatusCode", 500))
    if code == "NoSuchBucket":
        return NoSource(f"there is no {source}: no such bucket")
    if status >= 500:
        return ServiceUnavailable(f"{source}: S3 answers {code}")
    return Forbidden(f"{source} cannot be listed with these keys: S3 answers {code}")


LISTED = "uri string, size_bytes bigint, modified_ms bigint, etag string"


DELTA_LOG = "_delta_log"


def check_counted(file: str, folders: Iterable[str]) -> None:
    """Raises: BadRequest: a file of Parquet lies below one of the folders, which have logs of Delta"""
    folder = next((folder for folder in folders if file.endswith(".parquet") and file.startswith(f"{folder}/")), None)
    if folder is not None:
        raise BadRequest(
            f"{folder} is a Delta table, of whose files some may count no longer: `import --format delta` takes it; nothing was taken"
        )


class NoSource(BadRequest):
    """There is no such path, or nothing of the pattern."""

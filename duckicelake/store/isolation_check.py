"""Check of the store's isolation: which requests vended credentials of one table allow and refuse, tried on a scratch folder.

Called by the command `duckicelake check --storage`, never by the server. It asks STS for sessions, and writes and deletes objects in the
scratch folder, which the command empties afterwards.
Law: a request to another table's objects must be refused with an error that means forbidden; any other error proves nothing.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import boto3
from botocore import UNSIGNED
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from duckicelake.errors import NotServed, ServiceUnavailable
from duckicelake.store.s3 import StoreSettings
from duckicelake.store.signing import RequestSigner
from duckicelake.store.vending import CredentialScope, SessionCredentials, Vendor, format_policy

TABLE, DATA, TWIN = "table", "data", "TABLE"
OWN, OTHER = "own.parquet", "other.parquet"
FORBIDDEN: Mapping[str, str] = {
    "another table": f"sibling/{OTHER}",
    "a table with a longer name": f"{TABLE}0/{OTHER}",
    "a table with a shorter name": f"{TABLE[:-1]}/{OTHER}",
    "what lies above": OTHER,
}
"""Objects that credentials of the table must not open, by the description of their owner."""

TWINS_OBJECT = f"{TWIN}/{OTHER}"
OBJECTS = (f"{TABLE}/{OWN}", f"{DATA}/{OWN}", TWINS_OBJECT, *FORBIDDEN.values())
CONTENT = b"of a proof; may be deleted"


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """Credentials of a client; in some checks a part is missing or comes from another session."""

    access_key_id: str | None
    secret_access_key: str | None
    session_token: str | None = None

    @classmethod
    def of(cls, session: SessionCredentials) -> "ClientCredentials":
        """Return the credentials of a session."""
        return cls(session.access_key_id, session.secret_access_key, session.session_token)


@dataclass(frozen=True, slots=True)
class ScratchFolder:
    """A scratch folder: its bucket, its key with a trailing slash, and a client with the catalog's own credentials."""

    bucket: str
    folder: str
    root: Any

    def name(self, place: str) -> dict[str, str]:
        """Return bucket and key of an object in the folder, as parameters of a request."""
        return {"Bucket": self.bucket, "Key": self.folder + place}

    def uri(self, place: str) -> str:
        """Return the URI of an object or a subfolder."""
        return f"s3://{self.bucket}/{self.folder}{place}"

    def write_objects(self) -> None:
        """Write the objects of the check. Raises: ServiceUnavailable: the catalog's own credentials do not allow it."""
        call_with_own_keys("PUT below ICEBERG_PATH", lambda: [self.root.put_object(**self.name(place), Body=CONTENT) for place in OBJECTS])

    def list_changed(self) -> list[str]:
        """Return the objects that were changed or deleted since `write_objects`, and new ones."""
        found = {key: self.root.get_object(Bucket=self.bucket, Key=key)["Body"].read() for key in self._list_keys()}
        written = {self.folder + place: CONTENT for place in OBJECTS}
        return sorted(key.removeprefix(self.folder) for key in found.keys() | written.keys() if found.get(key) != written.get(key))

    def clear(self) -> list[str]:
        """Delete everything below the folder, and return the keys that are still there."""
        for key in list(self._list_keys()):
            self.root.delete_object(Bucket=self.bucket, Key=key)
        return list(self._list_keys())

    def end_uploads(self) -> None:
        """Abort the incomplete multipart uploads below the folder."""
        pages = self.root.get_paginator("list_multipart_uploads").paginate(Bucket=self.bucket, Prefix=self.folder)
        for upload in [upload for page in pages for upload in page.get("Uploads", ())]:
            self.root.abort_multipart_upload(Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"])

    def _list_keys(self) -> Iterator[str]:
        pages = self.root.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self.folder)
        return (found["Key"] for page in pages for found in page.get("Contents", ()))


def open_client(store: StoreSettings, keys: ClientCredentials | None) -> Any:
    """Return an S3 client with these credentials, anonymous for None. Credentials of None are those of the environment."""
    make_client: Callable[..., Any] = getattr(boto3, "client")  # noqa: B009  boto3 makes its clients at run time, without types
    shown = keys or ClientCredentials(None, None)
    anonymous = {"signature_version": UNSIGNED} if keys is None else {}
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
            **anonymous,
        ),
    )


def call_with_own_keys(what: str, call: Callable[[], object]) -> None:
    """Call a function that uses the catalog's own credentials. Raises: ServiceUnavailable: the store refuses it."""
    try:
        call()
    except ClientError as error:
        response: Any = error.response
        raise ServiceUnavailable(f"The catalog's own keys may not {what} ({response['Error'].get('Code')}).") from None
    except BotoCoreError as error:
        raise ServiceUnavailable(f"The object store does not answer ({type(error).__name__}).") from None


Requests = Mapping[str, Callable[[], object]]


def list_reads(s3: Any, scratch: ScratchFolder, place: str) -> Requests:
    """Return requests that read an object or list its folder."""
    folder = scratch.folder + place.rpartition("/")[0]
    return {
        "GET": lambda: s3.get_object(**scratch.name(place))["Body"].read(),
        "HEAD": lambda: s3.head_object(**scratch.name(place)),
        "LIST": lambda: s3.list_objects_v2(Bucket=scratch.bucket, Prefix=f"{folder.rstrip('/')}/"),
    }


def list_writes(s3: Any, scratch: ScratchFolder, place: str) -> Requests:
    """Return requests that create, change and delete an object; after all of them it does not exist."""
    return {
        "PUT": lambda: s3.put_object(**scratch.name(place), Body=CONTENT),
        "CopyObject to it": lambda: s3.copy_object(**scratch.name(place), CopySource=scratch.name(f"{TABLE}/{OWN}")),
        "multipart upload": lambda: upload_in_parts(s3, scratch, place),
        "DELETE": lambda: s3.delete_object(**scratch.name(place)),
        "DeleteObjects": lambda: delete_several(s3, scratch, place),
    }


def list_copies(s3: Any, scratch: ScratchFolder, sources: Mapping[str, str]) -> Requests:
    """Return requests that copy objects of others into the table."""
    target = f"{TABLE}/copied"
    whole = {
        f"CopyObject from {whose}": lambda place=place: s3.copy_object(**scratch.name(target), CopySource=scratch.name(place))
        for whose, place in sources.items()
    }
    parts = {
        f"UploadPartCopy from {whose}": lambda place=place: upload_in_parts(s3, scratch, target, place) for whose, place in sources.items()
    }
    return whole | parts


def list_foreign_lists(s3: Any, scratch: ScratchFolder) -> Requests:
    """Return list requests by prefixes that do not belong to the table, though some begin like its own."""
    prefixes = {
        "without a prefix": "",
        "above": scratch.folder,
        "without the slash at its end": scratch.folder + TABLE,
        "by a shorter one": scratch.folder + TABLE[:-1],
        "with a step up": f"{scratch.folder}{TABLE}/../",
    }

    def find(prefix: str) -> None:
        found = s3.list_objects_v2(Bucket=scratch.bucket, Prefix=prefix, MaxKeys=1)
        if prefix.endswith("../") and not found.get("KeyCount"):
            # This store does not resolve `..`, so the prefix is one of the table's own, without objects.
            raise NothingFound

    return {f"LIST {how}": lambda prefix=prefix: find(prefix) for how, prefix in prefixes.items()}


def list_steps(s3: Any, scratch: ScratchFolder) -> Requests:
    """Return requests that read another table by keys that begin like the table's own and contain `..`."""
    steps = ("..", "%2e%2e", ".%2e", "..%2f..", "%252e%252e")

    def find(step: str) -> None:
        try:
            s3.get_object(**scratch.name(f"{TABLE}/{step}/sibling/{OTHER}"))
        except ClientError as error:
            if is_missing(error):
                raise NothingFound from None
            raise

    return {f"GET by {step}": lambda step=step: find(step) for step in steps}


class NothingFound(Exception):
    """The requested objects do not exist for these credentials, which counts as refused."""


def is_missing(error: ClientError) -> bool:
    """True if the store answers that there is no such object, or that its key is invalid."""
    response: Any = error.response
    return response.get("ResponseMetadata", {}).get("HTTPStatusCode") in (400, 404)


def upload_in_parts(s3: Any, scratch: ScratchFolder, place: str, source: str | None = None) -> None:
    """Write an object by a multipart upload, from content or from another object."""
    name = scratch.name(place)
    upload = s3.create_multipart_upload(**name)["UploadId"]
    part = {**name, "UploadId": upload, "PartNumber": 1}
    try:
        if source is None:
            tag = s3.upload_part(**part, Body=CONTENT)["ETag"]
        else:
            tag = s3.upload_part_copy(**part, CopySource=scratch.name(source))["CopyPartResult"]["ETag"]
        s3.complete_multipart_upload(**name, UploadId=upload, MultipartUpload={"Parts": [{"PartNumber": 1, "ETag": tag}]})
    except ClientError:
        s3.abort_multipart_upload(**name, UploadId=upload)
        raise


def delete_several(s3: Any, scratch: ScratchFolder, place: str) -> None:
    """Delete an object by DeleteObjects; a refusal is in the body of its response."""
    answer = s3.delete_objects(Bucket=scratch.bucket, Delete={"Objects": [{"Key": scratch.folder + place}]})
    for error in answer.get("Errors", ()):
        raise ClientError({"Error": error, "ResponseMetadata": {"HTTPStatusCode": 403}}, "DeleteObjects")


REFUSALS = (400, 401, 403)
MALFORMED = ("InvalidRequest", "InvalidArgument", "MalformedXML", "MissingContentMD5", "InvalidDigest", "BadDigest", "RequestTimeTooSkewed")
NO_REFUSALS = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchUpload", *MALFORMED, "InternalError", "RequestTimeout", "SlowDown"})
SKEW_S = 300


class CheckVerdict(StrEnum):
    """The result of a check; `noted` is information that does not count."""

    ok = "ok"
    failed = "failed"
    noted = "noted"


@dataclass(frozen=True, slots=True)
class CheckOutcome:
    """One line of the report: the check, its verdict, and the requests that did not behave as they must."""

    name: str
    verdict: CheckVerdict
    detail: str = ""


@dataclass(frozen=True, slots=True)
class CheckSessions:
    """Credentials for the scratch table: to read it, to write it, and for one object."""

    reader: SessionCredentials
    writer: SessionCredentials
    file: SessionCredentials


def create_sessions(vendor: Vendor, scratch: ScratchFolder) -> CheckSessions:
    """Return credentials for the scratch table, made in the same way as those of every table.

    Raises: ServiceUnavailable: STS does not answer or refuses. Unsupported: the folder's name has no safe spelling
    """
    folders, now_s = (scratch.uri(f"{TABLE}/"), scratch.uri(f"{DATA}/")), time.time()
    scopes = (CredentialScope(folders), CredentialScope(folders, (), folders[:1]), CredentialScope((), (scratch.uri(f"{TABLE}/{OWN}"),)))
    return CheckSessions(*(vendor.get_keys(format_policy(scope, vendor.partition), now_s) for scope in scopes))


def check_isolation(store: StoreSettings, lifetime_s: int, scratch: ScratchFolder, sessions: CheckSessions) -> Iterator[CheckOutcome]:
    """Try the credentials on the objects of the scratch folder, and yield the lines of the report."""
    reader, writer, one = (open_client(store, ClientCredentials.of(keys)) for keys in (sessions.reader, sessions.writer, sessions.file))
    yield from _check_own(reader, writer, scratch)
    for who, s3 in (("key to read", reader), ("key to write", writer)):
        for whose, place in FORBIDDEN.items():
            yield expect_refused(f"{who}: {whose}", {**list_reads(s3, scratch, place), **list_writes(s3, scratch, place)})
        yield expect_refused(f"{who}: lists by other prefixes", list_foreign_lists(s3, scratch))
        yield expect_refused(f"{who}: keys with steps in them", list_steps(s3, scratch))
    yield expect_refused("key to write: copies from others", list_copies(writer, scratch, FORBIDDEN))
    yield expect_refused("key for one object: others, in a folder whose name differs by case", _list_all(one, scratch, TWINS_OBJECT))
    yield expect_refused("key for one object: that one is not written", list_writes(one, scratch, f"{TABLE}/{OWN}"))
    yield from _check_sessions(store, scratch, sessions)
    yield _check_expiry(sessions.writer, lifetime_s)
    changed: list[str] = []
    call_with_own_keys("read what the proof has written", lambda: changed.extend(scratch.list_changed()))
    yield CheckOutcome("nothing of others was changed", CheckVerdict.failed if changed else CheckVerdict.ok, ", ".join(changed))
    yield _note_case(reader, scratch)


def _check_own(reader: Any, writer: Any, scratch: ScratchFolder) -> Iterator[CheckOutcome]:
    own, ducklake, new = f"{TABLE}/{OWN}", f"{DATA}/{OWN}", f"{TABLE}/new.parquet"
    yield expect_done("key to read: its own table is read", list_reads(reader, scratch, own))
    yield expect_done("key to read: DuckLake's folder of it is read", list_reads(reader, scratch, ducklake))
    yield expect_refused("key to read: nothing is written to its own table", list_writes(reader, scratch, own))
    yield expect_done("key to write: its own table is read", list_reads(writer, scratch, own))
    yield expect_done("key to write: its own table is written", list_writes(writer, scratch, new))
    yield expect_refused("key to write: DuckLake's folder of it is not written", list_writes(writer, scratch, ducklake))


def _check_sessions(store: StoreSettings, scratch: ScratchFolder, sessions: CheckSessions) -> Iterator[CheckOutcome]:
    """Check that credentials do not work without their own session token."""
    keys = ClientCredentials.of(sessions.writer)
    token = keys.session_token or ""
    half = len(token) // 2
    changed = token[:half] + ("A" if token[half : half + 1] != "A" else "B") + token[half + 1 :]
    strangers = {
        "nobody's request": None,
        "key without its session": ClientCredentials(keys.access_key_id, keys.secret_access_key),
        "key with another's session": ClientCredentials(keys.access_key_id, keys.secret_access_key, sessions.reader.session_token),
        "key with a changed session": ClientCredentials(keys.access_key_id, keys.secret_access_key, changed),
    }
    for who, shown in strangers.items():
        yield expect_refused(f"{who}: the table", _list_all(open_client(store, shown), scratch, f"{TABLE}/{OWN}"))


def _check_expiry(keys: SessionCredentials, lifetime_s: int) -> CheckOutcome:
    left_s = int(keys.expires_at_ms / 1000 - time.time())
    verdict = CheckVerdict.ok if left_s <= lifetime_s + SKEW_S else CheckVerdict.failed
    return CheckOutcome("keys end when they were asked to", verdict, f"in {left_s} s of {lifetime_s} asked for")


def _note_case(reader: Any, scratch: ScratchFolder) -> CheckOutcome:
    """Report if the store ignores case in prefixes; the catalog then gives credentials for single files of such folders."""
    opened = _list_done(list_reads(reader, scratch, TWINS_OBJECT))
    detail = "differ: no" if opened else "differ: yes"
    more = "; a table whose folder has a twin gets keys for its single files" if opened else ""
    return CheckOutcome("folders whose names differ by case alone", CheckVerdict.noted, detail + more)


def check_signing(store: StoreSettings, scratch: ScratchFolder) -> CheckOutcome:
    """Return the line that says if the server signs requests for this store, or why not."""
    try:
        RequestSigner(store).check_strict(scratch.bucket)
    except (NotServed, ServiceUnavailable) as error:
        return CheckOutcome("signed requests", CheckVerdict.noted, f"none are given: {error.message}")
    return CheckOutcome("signed requests", CheckVerdict.noted, "are given: the store holds to what is signed")


def expect_done(name: str, requests: Requests) -> CheckOutcome:
    """Return the line of requests that the store must accept."""
    wrong = [f"{request} ({answer})" for request, answer in _send(requests) if answer]
    if wrong:
        return CheckOutcome(name, CheckVerdict.failed, f"not done: {', '.join(wrong)}")
    return CheckOutcome(name, CheckVerdict.ok, ", ".join(requests))


def expect_refused(name: str, requests: Requests) -> CheckOutcome:
    """Return the line of requests that the store must refuse."""
    wrong = [f"{request} ({answer or 'done'})" for request, answer in _send(requests) if not is_refusal(answer)]
    if wrong:
        return CheckOutcome(name, CheckVerdict.failed, f"not refused: {', '.join(wrong)}")
    return CheckOutcome(name, CheckVerdict.ok, ", ".join(requests))


def is_refusal(answer: str) -> bool:
    """True if the store's answer means forbidden."""
    status, _, code = answer.partition(" ")
    return answer == NothingFound.__name__ or (status.isdigit() and int(status) in REFUSALS and code not in NO_REFUSALS)


def _list_all(s3: Any, scratch: ScratchFolder, place: str) -> Requests:
    return {**list_reads(s3, scratch, place), **list_writes(s3, scratch, place)}


def _list_done(requests: Requests) -> list[str]:
    return [request for request, answer in _send(requests) if not answer]


def _send(requests: Requests) -> Iterable[tuple[str, str]]:
    """Send requests, and yield each with the store's answer: empty for success, else status and error code."""
    for name, send in requests.items():
        try:
            send()
        except NothingFound:
            yield name, NothingFound.__name__
        except ClientError as error:
            response: Any = error.response
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
            yield name, f"{status} {response.get('Error', {}).get('Code', '')}".strip()
        except BotoCoreError as error:
            yield name, type(error).__name__
        else:
            yield name, ""

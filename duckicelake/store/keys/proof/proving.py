"""Which requests keys of one table must do and must not do: sent to the store, and read off line by line.

Law: what is tried with keys of others' places must be refused by the store, with the answer for what is not allowed; whatever
else it answers proves nothing.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from duckicelake.errors import NotServed, ServiceUnavailable
from duckicelake.store.keys.policy import KeyScope, format_policy
from duckicelake.store.keys.proof.field import BESIDE, DATA, OWN, TABLE, TWINS_OBJECT, Field, Keys, open_client, with_own_keys
from duckicelake.store.keys.proof.requests import Nothing, Requests, list_copies, list_lists, list_reads, list_steps, list_writes
from duckicelake.store.keys.sessions import SessionKeys, Vendor
from duckicelake.store.keys.signer import Signer
from duckicelake.store.s3 import StoreSettings

REFUSALS = (400, 401, 403)
MALFORMED = ("InvalidRequest", "InvalidArgument", "MalformedXML", "MissingContentMD5", "InvalidDigest", "BadDigest", "RequestTimeTooSkewed")
NO_REFUSALS = frozenset({"NoSuchKey", "NoSuchBucket", "NoSuchUpload", *MALFORMED, "InternalError", "RequestTimeout", "SlowDown"})
SKEW_S = 300


class Verdict(StrEnum):
    """How a check ended; `noted` is what is good to know and decides nothing."""

    ok = "ok"
    failed = "failed"
    noted = "noted"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One line of the proof: what was tried, how it ended, and what of it did not as it must."""

    name: str
    verdict: Verdict
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Sessions:
    """Keys of the scratch table: to read, to write, and for one object of it alone."""

    reader: SessionKeys
    writer: SessionKeys
    file: SessionKeys


def cut_sessions(vendor: Vendor, field: Field) -> Sessions:
    """Return keys of the scratch table, cut as those of every table are.

    Raises: ServiceUnavailable: the token service gives none. Unsupported: the folder's name has no safe spelling
    """
    folders, now_s = (field.uri(f"{TABLE}/"), field.uri(f"{DATA}/")), time.time()
    scopes = (KeyScope(folders), KeyScope(folders, (), folders[:1]), KeyScope((), (field.uri(f"{TABLE}/{OWN}"),)))
    return Sessions(*(vendor.get_keys(format_policy(scope, vendor.partition), now_s) for scope in scopes))


def prove(store: StoreSettings, lifetime_s: int, field: Field, sessions: Sessions) -> Iterator[Outcome]:
    """Try the keys on what is laid out, and return the lines as they come."""
    reader, writer, one = (open_client(store, Keys.of(keys)) for keys in (sessions.reader, sessions.writer, sessions.file))
    yield from _prove_own(reader, writer, field)
    for who, s3 in (("key to read", reader), ("key to write", writer)):
        for whose, place in BESIDE.items():
            yield refused(f"{who}: {whose}", {**list_reads(s3, field, place), **list_writes(s3, field, place)})
        yield refused(f"{who}: lists by other prefixes", list_lists(s3, field))
        yield refused(f"{who}: keys with steps in them", list_steps(s3, field))
    yield refused("key to write: copies from others", list_copies(writer, field, BESIDE))
    yield refused("key for one object: others, in a folder whose name differs by case", _list_all(one, field, TWINS_OBJECT))
    yield refused("key for one object: that one is not written", list_writes(one, field, f"{TABLE}/{OWN}"))
    yield from _prove_sessions(store, field, sessions)
    yield _prove_end(sessions.writer, lifetime_s)
    changed: list[str] = []
    with_own_keys("read what the proof has written", lambda: changed.extend(field.list_changed()))
    yield Outcome("nothing of others was changed", Verdict.failed if changed else Verdict.ok, ", ".join(changed))
    yield _note_case(reader, field)


def _prove_own(reader: Any, writer: Any, field: Field) -> Iterator[Outcome]:
    own, ducklake, new = f"{TABLE}/{OWN}", f"{DATA}/{OWN}", f"{TABLE}/new.parquet"
    yield done("key to read: its own table is read", list_reads(reader, field, own))
    yield done("key to read: DuckLake's folder of it is read", list_reads(reader, field, ducklake))
    yield refused("key to read: nothing is written to its own table", list_writes(reader, field, own))
    yield done("key to write: its own table is read", list_reads(writer, field, own))
    yield done("key to write: its own table is written", list_writes(writer, field, new))
    yield refused("key to write: DuckLake's folder of it is not written", list_writes(writer, field, ducklake))


def _prove_sessions(store: StoreSettings, field: Field, sessions: Sessions) -> Iterator[Outcome]:
    """Keys are worth nothing without their token, which says what they are for."""
    keys = Keys.of(sessions.writer)
    token = keys.session_token or ""
    half = len(token) // 2
    changed = token[:half] + ("A" if token[half : half + 1] != "A" else "B") + token[half + 1 :]
    strangers = {
        "nobody's request": None,
        "key without its session": Keys(keys.access_key_id, keys.secret_access_key),
        "key with another's session": Keys(keys.access_key_id, keys.secret_access_key, sessions.reader.session_token),
        "key with a changed session": Keys(keys.access_key_id, keys.secret_access_key, changed),
    }
    for who, shown in strangers.items():
        yield refused(f"{who}: the table", _list_all(open_client(store, shown), field, f"{TABLE}/{OWN}"))


def _prove_end(keys: SessionKeys, lifetime_s: int) -> Outcome:
    left_s = int(keys.expires_at_ms / 1000 - time.time())
    verdict = Verdict.ok if left_s <= lifetime_s + SKEW_S else Verdict.failed
    return Outcome("keys end when they were asked to", verdict, f"in {left_s} s of {lifetime_s} asked for")


def _note_case(reader: Any, field: Field) -> Outcome:
    """A store that takes no notice of case opens a folder's twin; the catalog opens such folders file by file."""
    opened = _find_done(list_reads(reader, field, TWINS_OBJECT))
    told = "differ: no" if opened else "differ: yes"
    more = "; a table whose folder has a twin gets keys for its single files" if opened else ""
    return Outcome("folders whose names differ by case alone", Verdict.noted, told + more)


def note_signing(store: StoreSettings, field: Field) -> Outcome:
    """Tell whether requests are signed for this store, or why not."""
    try:
        Signer(store).check_strict(field.bucket)
    except (NotServed, ServiceUnavailable) as error:
        return Outcome("signed requests", Verdict.noted, f"none are given: {error.message}")
    return Outcome("signed requests", Verdict.noted, "are given: the store holds to what is signed")


def done(name: str, requests: Requests) -> Outcome:
    """Return the line of requests that the store must do."""
    wrong = [f"{request} ({told})" for request, told in _send(requests) if told]
    return Outcome(name, Verdict.failed if wrong else Verdict.ok, f"not done: {', '.join(wrong)}" if wrong else ", ".join(requests))


def refused(name: str, requests: Requests) -> Outcome:
    """Return the line of requests that the store must refuse."""
    wrong = [f"{request} ({told or 'done'})" for request, told in _send(requests) if not is_refusal(told)]
    return Outcome(name, Verdict.failed if wrong else Verdict.ok, f"not refused: {', '.join(wrong)}" if wrong else ", ".join(requests))


def is_refusal(told: str) -> bool:
    """Tell whether what the store said is that somebody may not."""
    status, _, code = told.partition(" ")
    return told == Nothing.__name__ or (status.isdigit() and int(status) in REFUSALS and code not in NO_REFUSALS)


def _list_all(s3: Any, field: Field, place: str) -> Requests:
    return {**list_reads(s3, field, place), **list_writes(s3, field, place)}


def _find_done(requests: Requests) -> list[str]:
    return [request for request, told in _send(requests) if not told]


def _send(requests: Requests) -> Iterable[tuple[str, str]]:
    """Yield each request with what the store said to it: nothing when it was done, else status and code."""
    for name, send in requests.items():
        try:
            send()
        except Nothing:
            yield name, Nothing.__name__
        except ClientError as error:
            told: Any = error.response
            status = told.get("ResponseMetadata", {}).get("HTTPStatusCode", "")
            yield name, f"{status} {told.get('Error', {}).get('Code', '')}".strip()
        except BotoCoreError as error:
            yield name, type(error).__name__
        else:
            yield name, ""

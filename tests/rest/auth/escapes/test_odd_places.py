"""Tables whose names could mean more, and files that were registered by path: each kind of key opens a table's own files alone."""

import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest

from duckicelake.access.grants import format_name
from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.escapes.signed import sign_as, to_path
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.auth.vended import DELEGATION, is_refused, open_root, open_vended, split
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack
from tests.support.tiers import long_but, whole_after

BUCKET = "lake"
REGISTERED = "registered"
PLAIN = re.compile(r"[A-Za-z0-9_./-]+")
NAMES = [
    *("k", "\u212a", "\uff4b", "k\u200b", "k*", "k?", "[a-z]", "${aws:username}", "${*}"),
    *("k%2f", "k%2F..%2Fk", "..", "k ", "k/..", "k'\";--"),
]
"""Wildcards, variables, escapes and steps; and letters that look like others, or fold to them (the sign of Kelvin)."""

Opens = Callable[[str], bool]
"""Whether a key opens an object."""


@dataclass(frozen=True, slots=True)
class Tables:
    """A guarded server with tables of a namespace, by their names, and an object of each: DuckDB's own data file."""

    managed: Managed
    files: Mapping[str, str]

    @property
    def guarded(self) -> Guarded:
        """The server."""
        return self.managed.guarded


@pytest.fixture(scope="module")
def tables(each_stack: SharedStack) -> Generator[Tables]:
    """Tables of these names in one namespace, all with a file, on each kind of store; one of them was registered by its path."""
    with make_lake(each_stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        conn, files = lake.duckdb(), dict[str, str]()
        conn.execute("CREATE SCHEMA odd")
        for name in NAMES:
            before = list_keys(guarded)
            conn.execute(f"CREATE TABLE odd.{quote_name(name)} AS SELECT range AS i FROM range(100000)")
            [files[name]] = list_keys(guarded) - before
        for name in (REGISTERED, "beside"):
            files[name] = f"{lake.name}/elsewhere/{name}.parquet"
            conn.execute(f"COPY (SELECT range AS i FROM range(1000)) TO 's3://{BUCKET}/{files[name]}'")
        conn.execute(f"CREATE TABLE odd.{REGISTERED} (i BIGINT)")
        conn.execute(f"CALL ducklake_add_data_files('lake', '{REGISTERED}', 's3://{BUCKET}/{files[REGISTERED]}', schema => 'odd')")
        managed = Managed(guarded)
        managed.add("one")
        yield Tables(managed, files)


def quote_name(name: str) -> str:
    """An identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def list_keys(guarded: Guarded) -> set[str]:
    """All keys below DATA_PATH."""
    found = open_root(guarded).list_objects_v2(Bucket=BUCKET, Prefix=split(guarded.lake.data_path)[1])
    return {each["Key"] for each in found.get("Contents", ())}


def to_table(name: str) -> str:
    """A table's path."""
    return f"namespaces/odd/tables/{quote(name, safe='')}"


def gets(s3: Any, key: str) -> bool:
    """Whether a client of the store gets an object."""
    return not is_refused(s3.get_object, Bucket=BUCKET, Key=key)


def open_vended_to(tables: Tables, name: str) -> Opens | None:
    """Keys that come with a load; none where no policy can name the table's places."""
    answer = tables.guarded.get("admin", to_table(name), **{header.replace("-", "_"): told for header, told in DELEGATION.items()})
    if answer.status != 200:
        assert answer.error == (406, "UnsupportedOperationException")
        return None
    s3 = open_vended(answer.json["config"])
    return lambda key: gets(s3, key)


def open_signed_to(tables: Tables, name: str) -> Opens | None:
    """Signatures for one table; none where the store obeys headers that nobody signed."""
    client = sign_as(tables.guarded, "admin", to_table(name))
    if client.ask("GET", to_path(tables.files[name])).status == 501:
        assert not {key for key in tables.files.values() if client.ask("GET", to_path(key)).status == 200}
        return None
    return lambda key: client.send("GET", to_path(key))[0] == 200


def open_ducklake_to(tables: Tables, name: str) -> Opens | None:
    """Keys of a DuckDB user who may read that table alone."""
    managed, on = tables.managed, f"table:{format_name(('odd', name))}"
    managed.give("read", on, "one")
    answer = managed.ask("one", "GET", "ducklake-credentials")
    managed.take("read", on, "one")
    if answer.status != 200:
        assert answer.error == (406, "UnsupportedOperationException")
        return None
    [given] = answer.json["storage-credentials"]
    s3 = open_vended({**given["config"], "s3.endpoint": tables.guarded.lake.store.endpoint})
    return lambda key: gets(s3, key)


KINDS: Mapping[str, Callable[[Tables, str], Opens | None]] = {
    "vended": open_vended_to,
    "signed": open_signed_to,
    "ducklake": open_ducklake_to,
}


@pytest.mark.whole
@pytest.mark.parametrize("kind", whole_after(1, KINDS))
@pytest.mark.parametrize("number", long_but(range(len(NAMES) + 1), 0))
def test_a_key_opens_its_own_table_and_no_other(tables: Tables, kind: str, number: int) -> None:
    """Or there is none, as for a table whose name could mean more in a policy; a name that means nothing more gets one."""
    name = [*NAMES, REGISTERED][number]
    opens = KINDS[kind](tables, name)
    assert opens is not None or kind == "signed" or not PLAIN.fullmatch(tables.files[name])
    opened = {each for each, key in tables.files.items() if opens is not None and opens(key)}
    assert opened == ({name} if opens is not None else set())

"""Grants, scopes and readers of a lake of DuckLake 1.1: a nested namespace is not the one of that name at the top."""

from dataclasses import replace
from typing import Any

import psycopg
import pytest
from ducklakepy.schema import Column, Schema
from ducklakepy.types import Int64Type

from duckicelake.catalog.namespace_changes import nest_schemas
from duckicelake.lake.connect import close_lake, open_lake
from duckicelake.lake.writing.migrate import migrate
from tests.rest.auth.ducklake.readers import OWN, ask, ask_as
from tests.rest.auth.rules.managed import Managed
from tests.rest.auth.vended import DELEGATION, is_refused, open_root, open_vended, split
from tests.support.ducklake_1_1 import open_ducklakepy

COLUMNS: dict[str, Any] = {"type": "struct", "fields": [{"id": 1, "name": "i", "required": False, "type": "long"}]}
NESTED, TOP, BELOW = "namespaces/b%1Fa", "namespaces/a", "namespaces/b%1Fa%1Fc"

SELECT_SCHEMAS = "SELECT s.schema_name, s.parent_schema_id IS NOT NULL FROM ducklake_schema s ORDER BY s.schema_id"
SELECT_TABLES = "SELECT t.table_name FROM ducklake_table t WHERE t.end_snapshot IS NULL ORDER BY t.table_name"
SELECT_LIVE_SCHEMAS = SELECT_SCHEMAS.replace("ORDER", "WHERE s.end_snapshot IS NULL ORDER")


@pytest.fixture
def nested(managed: Managed) -> Managed:
    """A migrated lake that has `a` at the top, and `b.a` and `b.a.c` with a table each."""
    lake = managed.guarded.lake
    managed.add("one")
    managed.give("read", "namespace:a", "one")
    assert ask(managed.guarded, managed.token("one")).psycopg().execute("SELECT count(*) > 0 FROM ducklake_table").fetchone() == (True,)
    migrate(lake.psycopg(), lake.metadata_schema)
    for path, levels in ((NESTED, ["b", "a"]), (BELOW, ["b", "a", "c"])):
        assert managed.guarded.ask("admin", "POST", "namespaces", {"namespace": levels}).status == 200
        assert managed.guarded.ask("admin", "POST", f"{path}/tables", {"name": f"in_{levels[-1]}", "schema": COLUMNS}).status == 200
    return managed


def test_a_grant_is_for_one_namespace_and_what_is_nested_in_it(nested: Managed) -> None:
    """A grant on `a` gives nothing in `b.a`, nor one on `b.a` in `a`; one on `b.a` covers `b.a.c`."""
    nested.add("two")
    nested.give("read", "namespace:b.a", "two")
    tables = f"{TOP}/tables/t", f"{NESTED}/tables/in_a", f"{BELOW}/tables/in_c"
    assert nested.statuses("one", *tables) == [200, 404, 404]
    assert nested.statuses("two", *tables) == [404, 200, 200]


def test_keys_open_the_table_of_one_namespace(nested: Managed) -> None:
    """A nested schema has a folder of its own in DuckLake; keys of its table open no table of that name in the schema `a` at the top."""
    with open_ducklakepy(nested.guarded.lake) as writer:
        for levels in (("a",), ("b", "a")):
            writer.create_table((*levels, "made"), schema=Schema(Column("i", Int64Type())))
    headers = {"Authorization": f"Bearer {nested.guarded.token('admin')}", **DELEGATION}
    told = [nested.guarded.server.get(f"{path}/tables/made", headers).json for path in (NESTED, TOP)]
    own, others = ([split(each["prefix"]) for each in answer["storage-credentials"]] for answer in told)
    assert len({*own, *others}) == 4
    root, keys = open_root(nested.guarded), open_vended(told[0]["config"])
    for bucket, folder in (*own, *others):
        root.put_object(Bucket=bucket, Key=f"{folder}x", Body=b"")
    assert [is_refused(keys.get_object, Bucket=bucket, Key=f"{folder}x") for bucket, folder in own] == [False, False]
    assert [is_refused(keys.get_object, Bucket=bucket, Key=f"{folder}x") for bucket, folder in others] == [True, True]


@pytest.mark.whole
def test_readers_of_a_migrated_lake_see_what_they_may(nested: Managed) -> None:
    """With the parents of what is nested, and the new table; access that is older than the migration shows no new column."""
    nested.add("two")
    nested.give("read", "namespace:b.a", "two")
    conn = ask(nested.guarded, nested.token("two")).psycopg()
    assert conn.execute(SELECT_SCHEMAS).fetchall() == [("b", False), ("a", True), ("c", True)]
    assert conn.execute(SELECT_TABLES).fetchall() == [("in_a",), ("in_c",)]
    assert conn.execute("SELECT count(*) FROM ducklake_view_column_tag").fetchone() == (0,)
    assert conn.execute("SELECT count(row_group_count) FROM ducklake_data_file").fetchone() == (0,)
    narrow = ask_as(nested.guarded, "admin", scope="ns:b.a.c:r").psycopg()
    assert narrow.execute(SELECT_TABLES).fetchall() == [("in_c",)]
    assert ask(nested.guarded, nested.token("one")).psycopg().execute(SELECT_TABLES).fetchall() == [("other",), ("t",)]
    with pytest.raises(psycopg.errors.InsufficientPrivilege):
        conn.execute("SELECT count(*) FROM lake.ducklake_table")


def test_a_grant_on_what_is_hidden_gives_nothing(managed: Managed) -> None:
    """DuckLake 1.0's schema for `b.a` and its table stay beside a nested one of that name, which is another's."""
    lake = managed.guarded.lake
    assert managed.guarded.ask("admin", "POST", "namespaces", {"namespace": ["b", "a"]}).status == 200
    assert managed.guarded.ask("admin", "POST", f"{NESTED}/tables", {"name": "t", "schema": COLUMNS}).status == 200
    for name, privileges, on in (("one", "read", "table:b.a.t"), ("two", "read", "namespace:b.a")):
        managed.add(name)
        managed.give(privileges, on, name)
        assert managed.statuses(name, f"{NESTED}/tables/t") == [200]
    migrate(lake.psycopg(), lake.metadata_schema)
    with lake.psycopg() as conn:
        conn.execute("UPDATE ducklake_schema SET schema_name = 'b|a' WHERE schema_name = 'b\u241fa'")
    assert managed.guarded.ask("admin", "POST", "namespaces", {"namespace": ["b", "a"]}).status == 200
    assert managed.guarded.ask("admin", "POST", f"{NESTED}/tables", {"name": "t", "schema": COLUMNS}).status == 200
    with lake.psycopg() as conn:
        conn.execute("UPDATE ducklake_schema SET schema_name = 'b\u241fa' WHERE schema_name = 'b|a'")
    # a change by which servers read the rules again
    managed.add("three")
    assert [managed.statuses(name, f"{NESTED}/tables/t") for name in ("one", "two")] == [[404], [404]]


def test_grants_and_access_hold_when_a_schema_is_nested(managed: Managed) -> None:
    """On a namespace that was one schema with a name of two levels, and on a table in it; nobody gets more, DuckLake's readers included."""
    lake = managed.guarded.lake
    for name, on in (("one", "namespace:deep.er"), ("two", "table:deep.er.t"), ("three", "namespace:a")):
        managed.add(name)
        managed.give("read", on, name)
    tables = "namespaces/deep%1Fer/tables/t", "namespaces/deep%1Fer/tables/other", f"{TOP}/tables/t"
    before = [managed.statuses(name, *tables) for name in ("one", "two", "three")]
    assert before == [[200, 200, 404], [200, 404, 404], [404, 404, 200]]
    migrate(lake.psycopg(), lake.metadata_schema)
    pool = open_lake("lake", lake.dsn, lake.metadata_schema, 1)
    assert nest_schemas(pool, is_dry_run=False).nested == ["deep.er"]
    close_lake(pool)
    assert [managed.statuses(name, *tables) for name in ("one", "two", "three")] == before
    conn = ask(managed.guarded, managed.token("two")).psycopg()
    assert conn.execute(SELECT_LIVE_SCHEMAS).fetchall() == [("deep", False), ("er", True)]
    assert conn.execute(SELECT_TABLES).fetchall() == [("t",)]
    told = ask(managed.guarded, managed.token("one"))
    with open_ducklakepy(replace(lake, dsn=told.answer["dsn"], metadata_schema=OWN)) as reader:
        assert reader.list_namespaces() == ["deep", "deep.er"]
        assert {ident.name for ident in reader.list_tables(("deep", "er"))} == {"t", "other"}
        assert reader.load_table(("deep", "er", "t")).to_arrow()["i"].to_pylist() == list(range(10))

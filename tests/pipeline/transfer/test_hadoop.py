"""Hadoop warehouses imported: registered with their history, or copied; what is there already is passed over."""

import json
import shutil

import pytest

from tests.pipeline.transfer.ferry import Ferry, check_compared, check_signed, describe

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

SHOP = [
    "CREATE TABLE {t}.shop.orders (id bigint NOT NULL COMMENT 'key', city string, day date, total decimal(9,2)) USING iceberg"
    " PARTITIONED BY (days(day), bucket(4, id)) TBLPROPERTIES ('write.metadata.compression-codec' = 'gzip', 'kept' = 'yes')",
    "ALTER TABLE {t}.shop.orders WRITE ORDERED BY city DESC",
    "INSERT INTO {t}.shop.orders VALUES (1, 'Rome', date'2026-01-01', 1.5), (2, NULL, date'2026-01-02', NULL), (3, 'Oslo', NULL, -2)",
    "DELETE FROM {t}.shop.orders WHERE id = 1",
    "CREATE TABLE {t}.shop.deep.orc (a struct<b: array<map<string, int>>>, `a.dot` int) USING iceberg"
    " TBLPROPERTIES ('write.format.default' = 'orc')",
    "INSERT INTO {t}.shop.deep.orc VALUES (named_struct('b', array(map('k', 1), NULL)), NULL)",
]


KEPT = {"owner-team": "a", "locations": "b", "gc.enabled.why": "c", "duckicelake.maintain.snapshot-age": "never"}
"""Properties that only begin like such as are about a place, and a policy."""


def test_tables_are_copied_with_their_shape(ferry: Ferry) -> None:
    """Columns, comments, NOT NULL, partitions, order and properties, whatever the files were; then the same call does nothing."""
    kept = ", ".join(f"'{name}' = '{text}'" for name, text in KEPT.items())
    ferry.run(*SHOP, f"ALTER TABLE {{t}}.shop.orders SET TBLPROPERTIES ({kept})")
    report = ferry.take()
    assert describe(report) == [("shop.orders", "done", 2), ("shop.deep.orc", "done", 1)], report.describe()
    assert report.status == 0
    check_compared(report, "rows", "checksums")
    assert ferry.ask_duckdb("SELECT id, city FROM lake.shop.orders ORDER BY id") == [(2, None), (3, "Oslo")]
    metadata = ferry.load_here("shop", "orders")
    columns = {field["name"]: (field["required"], field.get("doc")) for field in metadata["schemas"][0]["fields"]}
    assert columns == {"id": (True, "key"), "city": (False, None), "day": (False, None), "total": (False, None)}
    assert [field["transform"] for field in metadata["partition-specs"][0]["fields"]] == ["day", "bucket[4]"]
    assert [field["direction"] for field in metadata["sort-orders"][-1]["fields"]] == ["desc"]
    assert metadata["properties"]["kept"] == "yes"
    assert "owner" not in metadata["properties"]
    assert {name: metadata["properties"][name] for name in KEPT} == KEPT
    check_signed(report, metadata)
    again = ferry.take()
    assert describe(again) == [("shop.orders", "already-there", 2), ("shop.deep.orc", "already-there", 1)]
    assert check_compared(again, "rows", "checksums") == check_compared(report, "rows", "checksums")
    assert ferry.load_here("shop", "orders") == metadata
    for dry_run in (True, False):
        [told] = ferry.take("shop.orders", mode="register", dry_run=dry_run).moved
        assert (told.verdict, "2 of its 2 snapshots are not there: it is a copy" in told.message) == ("failed", True)
        assert (told.checked, told.source_checksum) == (("snapshots",), "")


def test_tables_are_registered_with_their_history(ferry: Ferry) -> None:
    """Files stay where they are, every snapshot comes along; the folder then shows what is written to the lake, and is the same again."""
    ferry.run(*SHOP)
    report = ferry.take("shop.orders", mode="register")
    assert describe(report) == [("shop.orders", "done", 2)], report.describe()
    assert report.moved[0].snapshots == 2
    check_compared(report, "snapshots", "rows", "checksums")
    assert ferry.load_here("shop", "orders")["location"] == (ferry.folder / "shop" / "orders").as_uri()
    first = ferry.load_here("shop", "orders")["snapshots"][0]["snapshot-id"]
    assert ferry.run(f"SELECT count(*) AS n FROM {{h}}.shop.orders VERSION AS OF {first}") == [{"n": 3}]
    assert describe(ferry.take("shop.orders", mode="register")) == [("shop.orders", "already-there", 2)]
    ferry.run("INSERT INTO {h}.shop.orders VALUES (9, 'Bern', NULL, 0)")
    assert ferry.run("SELECT count(*) AS n FROM {t}.shop.orders") == [{"n": 3}]
    assert describe(ferry.take("shop.orders", mode="register")) == [("shop.orders", "already-there", 3)]
    assert len(ferry.ask_duckdb("FROM lake.shop.orders")) == 3


@pytest.mark.long
def test_a_plan_changes_nothing(ferry: Ferry) -> None:
    """It names each table with what would be done, and starts no Spark."""
    ferry.run(*SHOP)
    before = ferry.ask_duckdb("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')")
    for mode, snapshots in (("copy", 0), ("register", 2)):
        report = ferry.take(mode=mode, dry_run=True)
        assert describe(report) == [("shop.orders", "planned", 2), ("shop.deep.orc", "planned", 1)]
        assert report.moved[0].snapshots == snapshots
        assert report.moved[0].describe().startswith(f"shop.orders: would {mode}")
    assert ferry.ask_duckdb("SELECT max(snapshot_id) FROM ducklake_snapshots('lake')") == before
    assert ferry.list_here("shop") == []


@pytest.mark.long
def test_a_broken_table_stops_no_other(ferry: Ferry) -> None:
    """Damaged and missing metadata, a missing data file, a taken name and names that differ by case: each says what is wrong."""
    for name in ("good", "torn", "gone", "lost", "taken", "twin", "TWIN"):
        ferry.run(f"CREATE TABLE {{t}}.ns.{name} (id int) USING iceberg", f"INSERT INTO {{t}}.ns.{name} VALUES (1), (2)")
    ferry.metadata_folder("ns", "torn").joinpath("v2.metadata.json").write_text('{"format-version"')
    for path in ferry.metadata_folder("ns", "gone").glob("v*.metadata.json"):
        path.unlink()
    shutil.rmtree(ferry.folder / "ns" / "lost" / "data")
    ferry.run("CREATE NAMESPACE {h}.ns", "CREATE TABLE {h}.ns.taken (other string) USING iceberg")
    report = ferry.take()
    assert report.status == 1
    told = {one.subject: one.message for one in report.moved if one.verdict == "failed"}
    assert set(told) == {"ns.torn", "ns.gone", "ns.lost", "ns.taken", "ns.twin", "ns.TWIN"}
    assert "v2.metadata.json" in told["ns.torn"]
    assert "version 2, which is missing; there is none" in told["ns.gone"]
    assert "another table has the name" in told["ns.taken"]
    assert "differ from it by case alone" in told["ns.twin"]
    assert ferry.list_here("ns") == ["good", "taken"]
    assert describe(ferry.take("ns.TWIN", "ns.none")) == [("ns.TWIN", "done", 2), ("ns.none", "failed", None)]


@pytest.mark.long
def test_tables_go_into_another_namespace(ferry: Ferry) -> None:
    """Namespaces are made; a warehouse that is one table alone needs one."""
    ferry.run("CREATE TABLE {t}.ns.t (id int) USING iceberg", "INSERT INTO {t}.ns.t VALUES (1)")
    assert describe(ferry.take(into="old.one")) == [("old.one.ns.t", "done", 1)]
    place = str(ferry.folder / "ns" / "t")
    lone = ferry.bring("import", place, mode="copy")
    assert (lone.status, "--into" in lone.moved[0].message) == (1, True)
    assert describe(ferry.bring("import", f"file:{place}", mode="copy", into="flat")) == [("flat.t", "done", 1)]


@pytest.mark.long
def test_a_table_outside_the_allowed_folders_is_copied_only(ferry: Ferry) -> None:
    """To register it is refused by the catalog, in its own words."""
    ferry.run("CREATE TABLE {t}.ns.t (id int) USING iceberg", "INSERT INTO {t}.ns.t VALUES (1)")
    elsewhere = ferry.folder.parent / "elsewhere"
    metadata = json.loads((ferry.metadata_folder("ns", "t") / "v2.metadata.json").read_text())
    shutil.copytree(ferry.folder, elsewhere)
    refused = ferry.bring("import", str(elsewhere), mode="register")
    assert (refused.status, "allowed_locations" in refused.moved[0].message) == (1, True)
    assert describe(ferry.bring("import", str(elsewhere), mode="copy")) == [("ns.t", "done", 1)]
    assert ferry.load_here("ns", "t")["properties"]["duckicelake.copy.uuid"] == metadata["table-uuid"]

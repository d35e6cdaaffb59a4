"""Delta tables become tables: what their logs say counts, not what lies in their folders."""

import json
import shutil
from collections.abc import Callable, Collection
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

from duckicelake.errors import BadRequest, ServiceUnavailable, Unsupported
from duckicelake.iceberg.schema import format_schema
from duckicelake.pipeline.common.storage import open_store
from duckicelake.pipeline.transfer.delta import (
    check_mapping,
    check_whole,
    explaining,
    format_keys,
    format_logical,
    format_physical,
    get_path_key,
    make_spec,
    parse_columns,
    read_log,
)
from tests.pipeline.ingest.test_s3 import Bucket
from tests.pipeline.transfer.ferry import Ferry, describe, write_properties

GOLDEN = Path(__file__).parent / "golden" / "spark-4.1.4-delta-4.4.0.zip"
"""Made by the statements in the file beside it."""
PHYSICAL, ID = "delta.columnMapping.physicalName", "delta.columnMapping.id"
GIVEN = {"form": "delta", "mode": "copy"}
PARTS = pa.table(
    {
        "id": pa.array([1, 2, 3, 4], pa.int64()),
        "part": ["a b/%+ü", None, "", "x=y"],
        "day": [date(2026, 1, 1), None, date(1900, 1, 1), date(2026, 1, 2)],
        "at": pa.array([datetime(2026, 1, 1, 1, 2, 3, 4, UTC), None, datetime(1960, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
        "ntz": pa.array([datetime(2026, 1, 1, 1, 2, 3, 4), None, datetime(1960, 1, 1), None], pa.timestamp("us")),  # noqa: DTZ001
        "price": pa.array([Decimal("1.10"), None, Decimal("-3.00"), Decimal("2.50")], pa.decimal128(9, 2)),
        "blob": [b"\x00\xff", None, b"", b"x"],
        "tags": pa.array([["a", None], None, [], ["b"]], pa.list_(pa.string())),
        "s": [{"x": 1, "y": None}, None, {"x": None, "y": "z"}, {"x": 4, "y": "w"}],
    }
)
MAPPED = [
    (0, "o0", {"aa": 0, "b": [{"x": 1}]}, {"k": {"y": 2}}, None, None),
    (1, "o1", {"aa": 1, "b": [{"x": 1}]}, {"k": {"y": 2}}, "p 1", None),
    (2, "o2", {"aa": 2, "b": [{"x": 1}]}, {"k": {"y": 2}}, "p 0", None),
    (10, "x", {"aa": 7, "b": [{"x": 9}]}, None, "p 1", "here"),
]


def lay_out(root: Path, tables: Collection[str]) -> Path:
    """These tables of Delta's own writer, below a folder."""
    with ZipFile(GOLDEN) as packed:
        packed.extractall(root, [name for name in packed.namelist() if name.split("/")[0] in tables])
    return root


@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_delta_tables_become_tables(ferry: Ferry) -> None:
    """Renamed and dropped columns, deleted rows, partitions of any value; what a copy cannot have is told; a copy is made once."""
    root = lay_out(ferry.folder / "de{l}ta[1]*", ["mapped", "variants"])
    made = ferry.folder / "made"
    write_deltalake(made, PARTS.slice(0, 1).drop_columns(["s"]), partition_by=["part", "day", "at", "price"])
    write_deltalake(made, PARTS.slice(1), mode="append", schema_mode="merge")
    # Its writer takes no such path.
    shutil.move(made, root / "shop.db" / "a b")
    report = ferry.bring("import", str(root), into="lake_of", **GIVEN)
    assert describe(report) == [
        ("lake_of.mapped", "done", 4),
        ("lake_of.variants", "failed", None),
        ("lake_of.shop.a b", "done", 4),
    ], report.describe()
    assert report.moved[1].message.startswith("column v is variant, which a copy cannot have")
    assert ferry.ask_duckdb('SELECT * FROM lake."lake_of".mapped ORDER BY id') == MAPPED
    told = ferry.load_here("lake_of", "mapped")
    fields = told["schemas"][-1]["fields"]
    assert [(item["name"], item["required"], item.get("doc")) for item in fields][:2] == [
        ("id", True, "the key"),
        ("new name", False, None),
    ]
    assert {"comment": "of names", "team": "a"}.items() <= told["properties"].items()
    assert not [name for name in told["properties"] if name.startswith("delta.")]
    wanted = [tuple((row | {"part": row["part"] or None, "s": None if row["id"] == 1 else row["s"]}).values()) for row in PARTS.to_pylist()]
    found = ferry.ask_duckdb('SELECT id, part, day, "at", ntz, price, blob, tags, s FROM lake."lake_of␟shop"."a b" ORDER BY id')
    assert found == wanted
    spec = ferry.load_here("lake_of%1Fshop", "a%20b")["partition-specs"][-1]
    assert [(item["name"], item["transform"]) for item in spec["fields"]] == [(name, "identity") for name in ("part", "day", "at", "price")]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_features_of_delta_s_own_writer(ferry: Ferry) -> None:
    """Deletion vectors, columns found by ids, widened types, partitions of every type, a table without rows."""
    root = lay_out(ferry.folder / "delta", ["vectors", "ids", "widened", "kinds", "empty"])
    planned = ferry.bring("import", str(root), into="d", dry_run=True, **GIVEN)
    assert [(one.subject, str(one.verdict)) for one in planned.moved] == [
        (f"d.{name}", "planned") for name in ("empty", "ids", "kinds", "vectors", "widened")
    ]
    assert ferry.list_here("d") == []
    report = ferry.bring("import", str(root), into="d", **GIVEN)
    assert describe(report) == [
        ("d.empty", "done", 0),
        ("d.ids", "done", 1),
        ("d.kinds", "done", 4),
        ("d.vectors", "done", 13),
        ("d.widened", "done", 2),
    ], report.describe()
    assert ferry.ask_duckdb("SELECT id, name FROM d.vectors ORDER BY id") == [(n, f"n{n}") for n in range(20) if n % 3]
    assert ferry.ask_duckdb("SELECT * FROM d.ids") == [(1, "a")]
    assert ferry.ask_duckdb("SELECT * REPLACE (day::VARCHAR AS day) FROM d.widened ORDER BY b") == [
        (1, 2, 3, 1.5, Decimal("1.250"), "2026-01-01 00:00:00", 4.0, Decimal("5.0")),
        (1000, 20_000_000_000, 30_000_000_000, 1e300, Decimal("12345.125"), "2026-01-02 03:04:05", 0.5, Decimal("1.5")),
    ]
    assert ferry.ask_duckdb("FROM d.kinds SELECT t, ok, f::TEXT, epoch_us(ts), epoch_us(ntz), d, hex(bin), bp ORDER BY t NULLS FIRST") == [
        (None, None, None, None, None, None, None, None),
        (-1, False, "nan", 1767268800000000, None, Decimal("-12345678901234567890.0000000001"), "", "z"),
        (1, True, "1.5", -14831769599876544, -14831769599876544, Decimal("1.1000000000"), "00FF", ""),
        (5, None, None, None, None, None, None, None),
    ]


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_states_and_damage_are_told(ferry: Ferry) -> None:
    """A checkpoint alone is a log; a later version is another state; damage of one table stops no other one; other imports say so."""
    root = ferry.folder / "delta"
    for name in ("cut", "fine", "hole", "lost", "moved"):
        for number in range(3):
            write_deltalake(root / name, pa.table({"id": [number]}), mode="append")
    fine = DeltaTable(root / "fine")
    fine.create_checkpoint()
    for number in range(3):
        (root / "fine" / "_delta_log" / f"{number:020}.json").unlink()
    (root / "hole" / "_delta_log" / f"{0:020}.json").unlink()
    (root / "cut" / "_delta_log" / f"{2:020}.json").write_text('{"add":')
    next((root / "lost").glob("*.parquet")).unlink()
    report = ferry.bring("import", str(root), into="d", **GIVEN)
    assert describe(report) == [
        ("d.cut", "failed", None),
        ("d.fine", "done", 3),
        ("d.hole", "failed", None),
        ("d.lost", "failed", None),
        ("d.moved", "done", 3),
    ], report.describe()
    assert [part in one.message for part, one in zip(("cannot be read: ", "", "first commit", "", ""), report.moved, strict=True)]
    again = ferry.bring("import", str(root), "moved", into="d", **GIVEN)
    assert describe(again) == [("d.moved", "already-there", 3)]
    DeltaTable(root / "moved").delete("id = 1")
    late = ferry.bring("import", str(root), "moved", into="d", **GIVEN)
    assert (late.status, "an older state" in late.moved[0].message) == (1, True)
    other = ferry.bring("import", str(root), "moved", into="d", mode="copy", form="hive")
    assert "--format delta" in other.moved[0].message
    assert "--format delta" in ferry.bring("import", str(root), "moved", into="d").moved[0].message


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("pipeline")
def test_folders_on_s3(ferry: Ferry, tmp_path: Path) -> None:
    """With the keys that are given; partitions of any value, deleted rows, and Parquet files without a log."""
    bucket = Bucket(ferry.served.lake)
    keys = format_keys(open_store(bucket.properties))
    write_deltalake(f"{bucket.uri}/shop/parts", PARTS.drop_columns(["s"]), partition_by=["part", "day"], storage_options=keys)
    for path in lay_out(tmp_path / "made", ["mapped"]).rglob("*"):
        if path.is_file():
            bucket.put(f"shop/{path.relative_to(tmp_path / 'made')}", path.read_bytes())
    pq.write_table(PARTS.select(["id", "price"]), tmp_path / "plain.parquet")
    bucket.put("plain/day=2026-01-01/a b.parquet", (tmp_path / "plain.parquet").read_bytes())
    given = write_properties(tmp_path, bucket.properties)
    report = ferry.bring("import", f"{bucket.uri}/shop", into="d", **GIVEN, **given)
    assert describe(report) == [("d.mapped", "done", 4), ("d.parts", "done", 4)], report.describe()
    assert ferry.ask_duckdb("SELECT * FROM d.mapped ORDER BY id") == MAPPED
    found = ferry.ask_duckdb('SELECT id, part, day, "at", ntz, price, blob, tags FROM d.parts ORDER BY id')
    assert found == [tuple({**row, "part": row["part"] or None}.values())[:-1] for row in PARTS.to_pylist()]
    plain = ferry.bring("import", f"{bucket.uri}/plain", into="d", form="hive", mode="copy", **given)
    assert describe(plain) == [("d.plain", "done", 4)], plain.describe()
    wrong = write_properties(tmp_path, dict(bucket.properties) | {"s3.secret-access-key": "wrong-key-0123"})
    with pytest.raises(ServiceUnavailable) as told:
        ferry.bring("import", f"{bucket.uri}/shop", into="d", **GIVEN, **wrong)
    assert "wrong-key-0123" not in str(told.value)


@pytest.mark.parametrize(
    ("form", "said"),
    [
        pytest.param("interval", "column a.element is interval", id="unknown"),
        pytest.param("decimal(5,-2)", "is decimal", id="negative scale"),
        pytest.param({"type": "map", "keyType": "string"}, "has no type", id="torn"),
    ],
)
def test_a_column_that_a_copy_cannot_have(form: Any, said: str) -> None:
    """Is named, with its type."""
    array = {"type": "array", "elementType": form, "containsNull": True}
    with pytest.raises((Unsupported, BadRequest), match=said.replace("(", r"\(")):
        parse_columns({"fields": [{"name": "a", "type": array, "nullable": True, "metadata": {}}]})


def test_columns_are_found_in_files_by_their_physical_names() -> None:
    """At every level; comments and NOT NULL are of the table, and not of the files."""
    inner = {
        "name": "x",
        "type": "short",
        "nullable": False,
        "metadata": {"delta.columnMapping.physicalName": "c2", "delta.columnMapping.id": 2},
    }
    outer = {
        "name": "a",
        "type": {"type": "array", "elementType": {"type": "struct", "fields": [inner]}, "containsNull": False},
        "nullable": False,
        "metadata": {"comment": "hm", PHYSICAL: "c1", ID: 1},
    }
    columns = parse_columns({"fields": [outer]})
    assert json.loads(json.dumps(format_schema(columns)["fields"])) == [
        {
            "id": 1,
            "name": "a",
            "type": {
                "type": "list",
                "element-id": 2,
                "element": {"type": "struct", "fields": [{"id": 3, "name": "x", "type": "int", "required": True}]},
                "element-required": True,
            },
            "required": True,
            "doc": "hm",
        }
    ]
    by_name, by_id = (format_physical({"type": "struct", "fields": [outer]}, mode)["fields"][0] for mode in ("name", "id"))
    assert [(one["name"], one["nullable"], one["metadata"]) for one in (by_name, by_id)] == [
        ("c1", True, {}),
        ("c1", True, {"parquet.field.id": 1}),
    ]
    assert by_id["type"]["elementType"]["fields"][0] == {
        "name": "c2",
        "type": "short",
        "nullable": True,
        "metadata": {"parquet.field.id": 2},
    }
    assert format_logical({"type": "struct", "fields": [outer]})["fields"][0]["type"]["elementType"]["fields"][0]["name"] == "x"
    with pytest.raises(Unsupported, match="neither name nor id"):
        check_mapping({"delta.columnMapping.mode": "stars"})
    blob = parse_columns({"fields": [{"name": "b", "type": "binary", "nullable": True, "metadata": {}}]})
    with pytest.raises(Unsupported, match="partitioned by b"):
        make_spec(blob, ["b"])


@pytest.mark.parametrize(
    ("names", "is_whole"),
    [
        pytest.param([f"{0:020}.json", f"{1:020}.json"], True, id="from the first commit on"),
        pytest.param([f"{1:020}.json"], False, id="without the first commit"),
        pytest.param([f"{9:020}.checkpoint.parquet", f"{10:020}.json"], True, id="checkpoint"),
        pytest.param([f"{9:020}.checkpoint.{part:010}.0000000002.parquet" for part in (1, 2)], True, id="checkpoint in parts"),
        pytest.param([f"{9:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"], True, id="checkpoint of version 2"),
        pytest.param([f"{0:020}.{5:020}.compacted.json"], True, id="compacted"),
        pytest.param([f"{1:020}.{5:020}.compacted.json", f"{5:020}.crc", "_last_checkpoint"], False, id="neither"),
    ],
)
def test_a_log_is_whole_or_refused(names: list[str], is_whole: bool) -> None:
    """The library takes one without its beginning for whole when a checksum file says the rest."""
    if is_whole:
        check_whole(names)
        return
    with pytest.raises(BadRequest, match="neither a first commit nor a checkpoint"):
        check_whole(names)


def ask_for(feature: str) -> dict[str, list[str]]:
    """A feature that readers and writers have to know."""
    return {"readerFeatures": [feature], "writerFeatures": [feature]}


def add_protocol(folder: Path, **protocol: Any) -> None:
    """Another commit, which asks for more of readers."""
    count = len(list((folder / "_delta_log").glob("*.json")))
    (folder / "_delta_log" / f"{count:020}.json").write_text(json.dumps({"protocol": protocol}))


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        pytest.param(lambda place: add_protocol(place, minReaderVersion=9, minWriterVersion=9), "version 9", id="version"),
        pytest.param(
            lambda place: add_protocol(place, minReaderVersion=3, minWriterVersion=7, **ask_for("fromMars")),
            "fromMars",
            id="feature",
        ),
        pytest.param(
            lambda place: add_protocol(place, minReaderVersion=3, minWriterVersion=7, **ask_for("catalogManaged")),
            "catalog-managed",
            id="a catalog's own",
        ),
        pytest.param(lambda place: shutil.rmtree(place / "_delta_log"), "cannot be read", id="no log"),
    ],
)
def test_what_a_log_asks_for_is_known_or_refused(tmp_path: Path, harm: Callable[[Path], None], said: str) -> None:
    """Never read by what is known alone, and told in a line."""
    place = tmp_path / "t"
    write_deltalake(place, pa.table({"id": [1]}))
    names = [path.name for path in (place / "_delta_log").iterdir()]
    harm(place)
    with pytest.raises((BadRequest, Unsupported), match=said) as told:
        read_log(str(place), names, {})
    assert "\n" not in str(told.value)


def test_a_panic_of_the_library_ends_one_table_alone(tmp_path: Path) -> None:
    """It is no Exception: its writer has one at such a path."""
    with pytest.raises(BadRequest, match="log of t cannot be read: Invalid object store url"), explaining("t"):
        write_deltalake(tmp_path / "de{l}ta[1]*" / "a b", pa.table({"id": [1]}))
    with pytest.raises(KeyboardInterrupt), explaining("t"):
        raise KeyboardInterrupt


def test_a_file_has_one_name() -> None:
    """Whoever writes it."""
    assert {get_path_key(path) for path in ("/a/b:c", "file:/a/b:c", "file:///a/b:c", "s3://x/a/b:c", "s3a://y/a/b:c")} == {"/a/b:c"}

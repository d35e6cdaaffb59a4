"""What copies leave behind goes, and nothing else: what is young, what is a table's, what others have there."""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from duckicelake.errors import ServiceUnavailable
from duckicelake.iceberg.partition import UNSORTED, PartitionSpec
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.schema import Schema
from duckicelake.pipeline.common.rest import RestCatalog, TableIdent
from duckicelake.pipeline.transfer.catalogs import PUBLISHING, STAGED, TransferTable
from duckicelake.pipeline.transfer.copies import Store, describe_new, remove_dead_copies
from duckicelake.pipeline.transfer.rest import RestSide
from duckicelake.store.objects import StoreSettings, open_objects
from duckicelake.translate.locations import copy_folders
from tests.pipeline.holding import list_files, list_named
from tests.pipeline.transfer.ferry import Ferry, describe

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]
ROWS = 5
DONE, THERE = [("ns.t", "done", ROWS)], [("ns.t", "already-there", ROWS)]


@dataclass(frozen=True, slots=True)
class Pier:
    """The other catalog of an export, and the metadata files that it has tables by."""

    ferry: Ferry
    place: str
    list_tables: Callable[[], list[str]]
    given: dict[str, Any] = field(default_factory=dict[str, Any])

    def export(self, **more: Any) -> list[tuple[str, str, int | None]]:
        """Export the lake's table."""
        return describe(self.ferry.bring("export", self.place, **self.given, **more))

    def die(self) -> set[str]:
        """Export, and end just before the table would be known; what that left."""

        def fail(step: str) -> None:
            if step.startswith("publish"):
                raise ServiceUnavailable("gone")

        before = list_files(self.ferry.folder)
        assert self.export(tell=fail) == [("ns.t", "failed", None)]
        return list_files(self.ferry.folder) - before

    def list_strays(self) -> set[str]:
        """What lies there and is no table's."""
        hints = {str(path) for path in self.ferry.folder.rglob("version-hint.text")}
        return list_files(self.ferry.folder) - list_named(*self.list_tables()) - hints


def fill(ferry: Ferry) -> None:
    """A table of the lake."""
    ferry.ask_duckdb(f"CREATE SCHEMA ns; CREATE TABLE ns.t AS SELECT range AS id FROM range({ROWS})")


def open_hadoop(ferry: Ferry) -> Pier:
    """A warehouse folder."""
    version = ferry.metadata_folder("ns", "t") / "v1.metadata.json"
    return Pier(ferry, str(ferry.folder), lambda: [str(version)] if version.exists() else [])


def open_jdbc(ferry: Ferry, name: str = "one") -> Pier:
    """A catalog on SQLite, whose files are in the same folder."""
    database = ferry.folder.parent / f"{name}.db"
    sqlite3.connect(database).close()

    def list_tables() -> list[str]:
        with closing(sqlite3.connect(database)) as conn:
            return [row[0] for row in conn.execute("SELECT metadata_location FROM iceberg_tables")]

    return Pier(ferry, f"sqlite:///{database}", list_tables, {"property": [f"warehouse={ferry.folder}", "catalog-name=one"]})


@pytest.fixture(params=[open_hadoop, open_jdbc], ids=["hadoop", "jdbc"])
def pier(request: pytest.FixtureRequest, ferry: Ferry) -> Pier:
    """Each kind of catalog whose files nobody else looks after."""
    fill(ferry)
    return request.param(ferry)


@pytest.mark.long
def test_what_a_dead_run_left_goes_with_the_next_one(pier: Pier) -> None:
    """When it is old, and a table is there by then; what is young stays."""
    first = pier.die()
    assert {"data", "metadata"} == {Path(path).parents[1].name for path in first}
    assert pier.export() == DONE
    assert pier.list_strays() == first
    assert pier.export(grace=0) == THERE
    assert pier.list_strays() == set()
    assert pier.export(grace=0) == THERE


@pytest.mark.long
def test_what_was_not_even_whole_goes_before_the_table_is_made(pier: Pier) -> None:
    """A run that died while it wrote rows, one while it removed what another left, one in the middle of a file; others' files stay."""
    first, second = (pier.die() for _ in range(2))
    for path in (*find(first, PUBLISHING), *(path for path in second if not path.endswith((PUBLISHING, STAGED)))):
        Path(path).unlink()
    place = Path(find(first, STAGED)[0]).parents[2]
    (place / "metadata" / ".part-abc.tmp").write_bytes(b"half")
    others = {place / "data" / "part=1" / "x.parquet", place / "data" / "copy-of-mine" / "x", place / "metadata" / "copy-0" / STAGED}
    others |= {place.parent / "t-else" / "data" / "x", place.parent / "u" / "metadata" / f"copy-{'0' * 16}" / STAGED}
    for path in others:
        path.parent.mkdir(parents=True)
        path.write_bytes(b"x")
    assert pier.export(grace=0) == DONE
    assert pier.list_strays() == set(map(str, others))


@pytest.mark.long
def test_a_copy_that_gave_a_sign_of_life_keeps_everything(pier: Pier) -> None:
    """However old its first files are."""
    first = pier.die()
    for path in first - set(find(first, PUBLISHING)):
        os.utime(path, (0, 0))
    assert pier.export() == DONE
    assert pier.list_strays() == first


@pytest.mark.long
@pytest.mark.parametrize("marks", [(STAGED, PUBLISHING), (STAGED,)], ids=["now", "earlier version"])
def test_a_run_that_died_when_its_table_was_known(pier: Pier, marks: tuple[str, ...]) -> None:
    """What it was staged by goes later, and the table keeps all of its files; copies of earlier versions never said how far they came."""
    assert pier.export() == DONE
    assert pier.list_strays() == set()
    [folder] = {Path(path).parent for path in list_named(*pier.list_tables()) if "/metadata/copy-" in path}
    for name in (*marks, "00001-x.metadata.json"):
        (folder / name).write_text("{}")
    assert pier.export(grace=0) == THERE
    assert pier.list_strays() == set()
    assert pier.export() == THERE


@pytest.mark.long
def test_a_table_that_was_dropped_from_a_database_keeps_its_files(ferry: Ferry) -> None:
    """Somebody may want them: a copy that was known is none any more. So it is with a table under another name."""
    fill(ferry)
    pier = open_jdbc(ferry)
    assert pier.export() == DONE
    dropped = list_files(ferry.folder)
    change(pier, "DELETE FROM iceberg_tables")
    assert pier.export(grace=0) == DONE
    assert pier.list_strays() == dropped
    change(pier, "UPDATE iceberg_tables SET table_name = 'renamed'")
    assert pier.export(grace=0) == DONE
    assert pier.list_strays() == dropped


@pytest.mark.long
def test_a_metadata_file_whose_row_never_came_goes(ferry: Ferry) -> None:
    """If it was to be in this database, and nobody has written to the table: another one may have its tables in the same folder."""
    fill(ferry)
    pier, other = open_jdbc(ferry), open_jdbc(ferry, "two")
    gone, theirs, written = (write_version(mine.die()) for mine in (pier, other, pier))
    Path(find(written, STAGED)[0]).parents[1].joinpath("00001-x.metadata.json").write_text("{}")
    assert pier.export(grace=0) == DONE
    assert not any(Path(path).exists() for path in gone)
    assert all(Path(path).exists() for path in theirs | written)


@pytest.mark.long
def test_an_import_leaves_nothing_that_it_was_staged_by(ferry: Ferry) -> None:
    """The server has written metadata of its own by then, and rows are read after it."""
    ferry.run(f"CREATE TABLE {{t}}.ns.t USING iceberg AS SELECT id FROM range({ROWS})")
    assert describe(ferry.take()) == DONE
    found = list_files(Path(ferry.served.lake.iceberg_path))
    assert {Path(path).parents[1].name for path in found if "/copy-" in path} == {"data"}
    assert ferry.ask_duckdb("SELECT count(*) FROM lake.ns.t") == [(ROWS,)]


@pytest.mark.long
@pytest.mark.parametrize(
    ("beside", "is_there", "left"),
    [
        pytest.param([], False, set[str](), id="no table ever"),
        pytest.param(["00000-x.metadata.json"], False, {"b"}, id="a table of another name"),
        pytest.param(["00000-x.metadata.json"], True, {"b"}, id="the table"),
    ],
)
def test_a_place_of_a_rest_catalog_may_be_another_tables(tmp_path: Path, beside: list[str], is_there: bool, left: set[str]) -> None:
    """Of that name before it was renamed: a copy that may have become known stays with it, one that cannot have goes."""
    catalog = RestSide("there", lambda: pytest.fail("nobody is asked"), Store(RestCatalog("", ""), {}, lambda _, __: True), {})
    new = describe_new(CreateTable("t", Schema(0, ()), PartitionSpec(0, ()), UNSORTED, None, {}), str(tmp_path))
    folders = {name: copy_folders(new.location, name * 16) for name in "ab"}
    for name, marks in (("a", [STAGED]), ("b", [STAGED, PUBLISHING])):
        for path in (f"{folders[name][0]}/x.parquet", *(f"{folders[name][1]}/{mark}" for mark in marks)):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).write_text("there")
    for name in beside:
        (tmp_path / "metadata" / name).write_text("{}")
    before = datetime.now(UTC) + timedelta(seconds=2)
    held = TransferTable(TableIdent(("ns",), "t"), new, "", {})
    remove_dead_copies(catalog, open_objects(StoreSettings(None, "", None, None)), held, before, is_there=is_there)
    assert {name for name in "ab" if list_files(Path(folders[name][0]).parents[1]) & {f"{folders[name][0]}/x.parquet"}} == left
    assert all((tmp_path / "metadata" / name).exists() for name in beside)


def write_version(left: set[str]) -> set[str]:
    """Let a run that died have come as far as to write the table's metadata file; all that is left of it."""
    version = Path(find(left, STAGED)[0]).parents[1] / "00000-x.metadata.json"
    version.write_text("{}")
    return left | {str(version)}


def find(paths: set[str], name: str) -> list[str]:
    """Those with that name."""
    return sorted(path for path in paths if path.endswith(f"/{name}"))


def change(pier: Pier, statement: str) -> None:
    """Change the rows of a JDBC catalog."""
    with closing(sqlite3.connect(pier.place.removeprefix("sqlite:///"))) as conn:
        conn.execute(statement)
        conn.commit()

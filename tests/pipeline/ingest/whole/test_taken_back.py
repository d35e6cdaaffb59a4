"""A run that breaks after it made tables takes them back, as far as nobody else has anything there."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from duckicelake.errors import CommitStateUnknown, ServiceUnavailable
from duckicelake.pipeline.common.failures import SparkFailed
from duckicelake.pipeline.common.rest import Rest, TableIdent, open_rest
from duckicelake.pipeline.ingest.plan import TableMaker, get_shape, is_unused
from tests.pipeline.ingest.mill import TABLE, Mill
from tests.pipeline.ingest.whole.wrong import TABLES, damage
from tests.support.tiers import long_but

on_spark = pytest.mark.spark
in_turn = pytest.mark.xdist_group("ingest")
MADE = {"table-uuid": "u", "properties": {}, "schemas": [{"schema-id": 0}]}
STAGED = {"snapshot-id": 1, "summary": {"total-records": "2"}}
EMPTY = {"snapshot-id": 1, "summary": {"total-records": "0"}}


def list_there(mill: Mill) -> list[str]:
    """Which of the three tables are there."""
    return [table for table in TABLES if mill.served.server.get(f"namespaces/raw/tables/{table}").status == 200]


@on_spark
@in_turn
def test_what_breaks_while_it_writes_takes_its_tables_back(mill: Mill) -> None:
    """Counted by what the file says of itself, and unreadable; with a good file in its place it is as if nothing had been."""
    damage(mill.write_parquet("a.parquet", id=[1, 2]))
    with pytest.raises(SparkFailed):
        mill.run()
    assert mill.told[-1] == "write raw.trips"
    assert list_there(mill) == []
    mill.write_parquet("a.parquet", id=[1, 2])
    assert mill.run().rows_out == 2
    assert list_there(mill) == ["trips", "trips__ingested"]


@pytest.mark.long
@on_spark
@in_turn
def test_who_is_interrupted_takes_back_the_quarantine_too(mill: Mill) -> None:
    """Right before it would be seen; a table that was there stays."""
    mill.write("a.csv", "id\n1\nbad\n")

    def interrupt(step: str) -> None:
        if step == "publish":
            assert list_there(mill) == list(TABLES)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mill.run(tell=interrupt, schema="id INT")
    assert list_there(mill) == []
    mill.duck.execute("CREATE TABLE raw.trips (id INTEGER)")
    with pytest.raises(KeyboardInterrupt):
        mill.run(tell=interrupt)
    assert list_there(mill) == ["trips"]
    assert mill.list_refs("trips") == []


def take_others(mill: Mill) -> None:
    """Another run into the same table."""
    (mill.folder.parent / "others").mkdir()
    replace(mill, folder=mill.folder.parent / "others").write_parquet("b.parquet", id=[3])
    mill.run(source=str(mill.folder.parent / "others"))


def alter(clause: str) -> Callable[[Mill], object]:
    """A change by another client."""
    return lambda mill: mill.spark.session.sql(f"ALTER TABLE {mill.catalog}.raw.trips {clause}")


OTHERS: dict[str, tuple[Callable[[Mill], object], list[str]]] = {
    "row": (lambda mill: mill.duck.execute("INSERT INTO raw.trips VALUES (3)"), ["trips"]),
    "column": (lambda mill: mill.duck.execute("ALTER TABLE raw.trips ADD COLUMN more INTEGER"), ["trips"]),
    "branch": (alter("CREATE BRANCH theirs"), ["trips"]),
    "property": (alter("SET TBLPROPERTIES ('k' = 'v')"), ["trips"]),
    "run": (take_others, ["trips", "trips__ingested"]),
}


@pytest.mark.long
@on_spark
@in_turn
@pytest.mark.parametrize("what", long_but(OTHERS, "row"))
def test_what_others_have_there_stays(mill: Mill, what: str) -> None:
    """Rows, columns, branches and properties that came while the run was at work."""
    change, left = OTHERS[what]
    damage(mill.write_parquet("a.parquet", id=[1, 2]))
    pending = [change]

    def tell(step: str) -> None:
        if step == "write raw.trips" and pending:
            pending.pop()(mill)

    with pytest.raises(SparkFailed):
        mill.run(tell=tell)
    assert list_there(mill) == left
    assert mill.rows(columns="id") == ([(3,)] if what in ("row", "run") else [])
    assert mill.list_refs("trips") == {"branch": ["theirs"], "row": ["main"], "run": ["main"]}.get(what, [])


@pytest.mark.parametrize(
    ("metadata", "unused"),
    [
        pytest.param(MADE, True, id="as made"),
        pytest.param({**MADE, "current-snapshot-id": -1, "refs": {}, "snapshots": [EMPTY], "sort-orders": [1]}, True, id="emptied"),
        pytest.param({**MADE, "table-uuid": "v"}, False, id="another"),
        pytest.param({**MADE, "schemas": [{"schema-id": 0}, {"schema-id": 1}]}, False, id="columns"),
        pytest.param({**MADE, "refs": {"ingest_x": {"snapshot-id": 1}}, "snapshots": [EMPTY]}, False, id="branch"),
        pytest.param({**MADE, "current-snapshot-id": 1, "snapshots": [EMPTY]}, False, id="main"),
        pytest.param({**MADE, "snapshots": [STAGED]}, False, id="staged"),
        pytest.param({**MADE, "snapshots": [{"snapshot-id": 1, "summary": {}}]}, False, id="untold"),
        pytest.param({**MADE, "snapshot-log": [{"snapshot-id": 1}]}, False, id="rolled back"),
    ],
)
def test_a_table_is_unused_when_nobody_has_anything_there(metadata: dict[str, Any], unused: bool) -> None:
    """Rows of a branch, or of a snapshot that waits to be published, are somebody's too."""
    assert is_unused(metadata, get_shape(MADE)) is unused


def test_what_may_have_landed_is_left_alone() -> None:
    """Nobody is asked then; and nobody hears of a catalog that is away."""
    asked: list[bool] = []

    def connect() -> Rest:
        asked.append(True)
        raise ServiceUnavailable("away")

    def fail(error: BaseException) -> None:
        maker = TableMaker(SimpleNamespace(), "c", connect, lambda _: None, {TABLE: MADE})
        with pytest.raises(type(error)), maker.taking_back():
            raise error

    fail(CommitStateUnknown("silence"))
    assert asked == []
    fail(KeyboardInterrupt())
    assert asked == [True]


@pytest.mark.long
@on_spark
@in_turn
def test_a_table_that_moves_between_look_and_drop_stays(mill: Mill) -> None:
    """The catalog looks once more, under its lock; what does not move goes."""
    rest = open_rest(mill.served.rest_catalog())

    class Overtaken(Rest):
        """A catalog in which somebody is faster."""

        def load_answer(self, ident: TableIdent) -> Any:
            answer = super().load_answer(ident)
            mill.duck.execute("INSERT INTO raw.trips VALUES (1)")
            return answer

    def take_back(rest: Rest) -> None:
        shape = get_shape(open_rest(mill.served.rest_catalog()).load_every(TABLE))
        TableMaker(mill.spark.session, mill.catalog, lambda: rest, lambda _: None, {TABLE: shape}).take_back()

    mill.duck.execute("CREATE SCHEMA raw")
    mill.duck.execute("CREATE TABLE raw.trips (id INTEGER)")
    take_back(Overtaken(rest.base, rest.catalog, rest.caller))
    assert mill.rows() == [(1,)]
    mill.duck.execute("DROP TABLE raw.trips")
    mill.duck.execute("CREATE TABLE raw.trips (id INTEGER)")
    take_back(rest)
    assert list_there(mill) == []

"""What a server remembers of a plan it made, and of manifests that it has looked at, saves work and changes no answer."""

import pytest

from duckicelake.catalog import publish
from duckicelake.catalog.manifest_import import imported, operations
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import BadRequest, CommitFailed
from duckicelake.store.objects import Objects
from duckicelake.translate import bulk_manifests, manifests
from tests.catalog.conftest import Opener
from tests.catalog.manifest_import.making import Batch, make
from tests.catalog.manifest_import.test_operations import FEWER, check_refused, fill, read_rows
from tests.catalog.reading import load
from tests.catalog.test_many_files import make_copies
from tests.support.lakes import FreshLake

MANIFESTS = 4


@pytest.fixture
def batch(lake: FreshLake, warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """A few manifests of one table, planned by the server and made."""
    monkeypatch.setattr(bulk_manifests, "ENTRIES_MIN", FEWER)
    monkeypatch.setattr(manifests, "ENTRIES_MAX", FEWER)
    make_copies(lake, MANIFESTS * FEWER - 1)
    made = make(lake, warehouse)
    assert len(made.made) == MANIFESTS
    return made


def forbid_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on nobody reads a table's rows to publish it."""
    monkeypatch.setattr(publish, "read_changes", lambda *_: pytest.fail("the table was read again"))  # pyright: ignore


def list_read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Objects that are read whole from now on."""
    read, read_small = list[str](), Objects.read_small

    def note(objects: Objects, uri: str, most_bytes: int) -> bytes:
        read.append(uri)
        return read_small(objects, uri, most_bytes)

    monkeypatch.setattr(Objects, "read_small", note)
    return read


def check_alone(lake: FreshLake, warehouse: Warehouse, open_server: Opener) -> None:
    """A server that knows nothing of all that writes the same."""
    first = load(warehouse)
    lake.psycopg().execute("DELETE FROM iceberg_manifest")
    alone = load(open_server(lake))
    assert (alone.metadata_location, alone.metadata) == (first.metadata_location, first.metadata)


def test_a_planned_table_is_not_read_again(
    lake: FreshLake, warehouse: Warehouse, open_server: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With partitions, deletes, inlined rows and older snapshots, as long as the lake has not moved."""
    monkeypatch.setattr(bulk_manifests, "ENTRIES_MIN", FEWER)
    fill(lake, "ALTER TABLE t ALTER k SET DATA TYPE BIGINT")
    made = make(lake, warehouse)
    with monkeypatch.context() as patch:
        forbid_reading(patch)
        assert made.submit(warehouse) == len(made.made) >= 2
    check_alone(lake, warehouse, open_server)
    with lake.duckdb() as conn:
        conn.execute("INSERT INTO t SELECT i, i, NULL, 1, 2, NULL FROM range(50) r(i)")
    check_alone(lake, warehouse, open_server)


def test_a_plan_is_good_for_its_moment(lake: FreshLake, warehouse: Warehouse, open_server: Opener, batch: Batch) -> None:
    """Another table's change moves the lake: what was offered is taken all the same, after a new reading."""
    with lake.duckdb() as conn:
        conn.execute("CREATE TABLE u AS SELECT range AS id FROM range(100)")
    assert batch.part(0, 1).show(warehouse) == 2
    assert batch.submit(warehouse) == MANIFESTS
    check_alone(lake, warehouse, open_server)


def test_a_load_between_plan_and_offer(lake: FreshLake, warehouse: Warehouse, open_server: Opener, batch: Batch) -> None:
    """Here or elsewhere: the table has its numbers then, which the plan does not know."""
    load(open_server(lake))
    assert batch.submit(warehouse) == MANIFESTS
    again = make(lake, warehouse)
    assert again.made == []
    check_alone(lake, warehouse, open_server)


def test_what_was_looked_at_is_not_read_again(
    lake: FreshLake, warehouse: Warehouse, open_server: Opener, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Part by part, in any order, and some of them twice; the rest is looked at when all is handed over."""
    read = list_read(monkeypatch)
    assert (batch.part(2, 0).show(warehouse), batch.part(1).show(warehouse)) == (2, 1)
    assert read_rows(lake) == []
    assert len(read) == 3
    forbid_reading(monkeypatch)
    assert batch.submit(warehouse) == MANIFESTS
    assert len(read) == len(set(read)) == MANIFESTS
    monkeypatch.undo()
    monkeypatch.setattr(bulk_manifests, "ENTRIES_MIN", FEWER)
    monkeypatch.setattr(manifests, "ENTRIES_MAX", FEWER)
    check_alone(lake, warehouse, open_server)


def test_another_server_looks_when_all_is_there(lake: FreshLake, open_server: Opener, batch: Batch) -> None:
    """It does not know the plan."""
    other = open_server(lake)
    assert batch.part(0).show(other) == 0
    assert batch.submit(other) == MANIFESTS


def test_a_part_that_is_wrong_is_refused(lake: FreshLake, warehouse: Warehouse, batch: Batch) -> None:
    """With the reason that all together would have, and the plan is forgotten, so that nobody tries out which ones are made again."""
    with pytest.raises(BadRequest, match="other bytes than what this server makes"):
        batch.tell(bytes=[1, 0]).part(0).show(warehouse)
    assert batch.part(0).show(warehouse) == 0
    batch = make(lake, warehouse)
    with pytest.raises(BadRequest, match="belong to no plan"):
        Batch(batch.plan, [{**batch.made[0], "digest": "0" * 64}]).show(warehouse)
    with pytest.raises(BadRequest, match="made by version 'other'"):
        batch.show(warehouse, "other")
    assert read_rows(lake) == []


def test_one_is_made_again_by_lot_in_whatever_part_it_comes(
    lake: FreshLake, warehouse: Warehouse, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the first of its kind: the lot is drawn with the plan."""
    last = batch.made[-1]["digest"]
    for module in (operations, imported):
        monkeypatch.setattr(module, "draw_lot", lambda digest: int(digest == last))  # pyright: ignore
    monkeypatch.setattr(operations.random, "choice", lambda _: last)  # pyright: ignore
    batch = make(lake, warehouse)
    assert batch.part(0).show(warehouse) == 1
    assert batch.part(1).tell(bytes=[1, 0]).show(warehouse) == 1
    with pytest.raises(BadRequest, match="other bytes than what this server makes"):
        batch.part(-1).tell(bytes=[1, 0]).show(warehouse)


def test_what_was_looked_at_may_go_or_change(lake: FreshLake, warehouse: Warehouse, batch: Batch) -> None:
    """An object that is gone since, and another one offered in its place, are seen when all is handed over."""
    assert batch.show(warehouse) == MANIFESTS
    uri = f"{batch.plan.recipe.note.location}/metadata/{batch.made[1]['name']}-m0.avro"
    content = warehouse.objects.read(uri)
    warehouse.objects.delete_many([uri])
    check_refused(lake, warehouse, batch, "is not there")
    warehouse.objects.put_new(uri, content)
    again = make(lake, warehouse)
    assert again.show(warehouse) == MANIFESTS
    check_refused(lake, warehouse, again.tell(rows=[0, 1, 0]), "other rows")
    assert batch.submit(warehouse) == MANIFESTS


def test_a_table_that_changed_is_told_with_the_first_part(lake: FreshLake, warehouse: Warehouse, batch: Batch) -> None:
    """What executors have not made yet need not be made."""
    with lake.duckdb() as conn:
        conn.execute("INSERT INTO t SELECT range FROM range(100)")
    with pytest.raises(CommitFailed, match="has changed since"):
        batch.part(0).show(warehouse)


def test_one_plan_is_kept(lake: FreshLake, warehouse: Warehouse, batch: Batch) -> None:
    """The newest one; it goes when it is taken up, whatever comes of it."""
    table_id = load(warehouse).table_id
    assert warehouse.plans.find(table_id, batch.plan.position) is not None
    assert warehouse.plans.find(table_id + 1, batch.plan.position) is None
    check_refused(lake, warehouse, batch.tell(rows=[0, 1, 0]), "other rows")
    assert warehouse.plans.find(table_id, batch.plan.position) is None

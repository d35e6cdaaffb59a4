"""DuckDB users with a role of their own read a namespace that was dropped and is back."""

import pytest

from tests.rest.auth.ducklake.readers import ask
from tests.rest.auth.rules.managed import Managed


@pytest.mark.whole
def test_an_undropped_namespace_is_read_as_before(managed: Managed) -> None:
    """Now and at earlier snapshots, other namespaces too: the former rows of its tables name the schema that was dropped."""
    writer = managed.guarded.lake.duckdb()
    writer.execute("CREATE SCHEMA q; CREATE TABLE q.p (k INTEGER, n INTEGER); ALTER TABLE q.p SET PARTITIONED BY (k)")
    writer.execute("INSERT INTO q.p SELECT i % 2, i FROM range(40) r(i)")
    writer.execute("INSERT INTO q.p VALUES (7, 7)")
    writer.execute("CREATE TABLE a.before AS SELECT 1 AS i")
    [before] = writer.execute("SELECT max(snapshot_id) FROM lake.snapshots()").fetchone() or []
    managed.add("reader_of_q")
    for namespace in ("q", "a"):
        managed.give("read", f"namespace:{namespace}", "reader_of_q")
    writer.execute("DROP SCHEMA q CASCADE")
    assert managed.manage("POST", "undrop", {"namespace": ["q"]}).status == 200
    reader = ask(managed.guarded, managed.token("reader_of_q")).duckdb()
    assert reader.execute("SELECT sum(n), count(*) FROM lake.q.p").fetchone() == (787, 41)
    assert reader.execute("SELECT n FROM lake.q.p WHERE k = 7").fetchall() == [(7,)]
    assert reader.execute(f"SELECT count(*) FROM lake.a.before AT (VERSION => {before})").fetchone() == (1,)
    assert reader.execute(f"SELECT sum(n) FROM lake.q.p AT (VERSION => {before})").fetchone() == (787,)

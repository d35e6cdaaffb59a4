"""Runs that need the same change of a table, and runs that fail on one that nobody has written to."""

import pyarrow as pa
import pytest

from duckicelake.errors import CatalogError
from duckicelake.pipeline.ingest.options import Evolve, IngestReport, Status
from tests.pipeline.ingest.mill import Mill
from tests.pipeline.ingest.whole.wrong import damage
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("ingest")]


@pytest.mark.parametrize(
    "step",
    long_but(
        ["create raw.trips", "widen n bigint in raw.trips", pytest.param("add more bigint in raw.trips", marks=pytest.mark.long)],
        "create raw.trips",
    ),
)
def test_the_other_run_may_have_made_the_change(mill: Mill, step: str) -> None:
    """It takes the files, and this one finds nothing left."""
    if not step.startswith("create"):
        mill.write_parquet("a.parquet", id=[1], n=pa.array([1], pa.int32()))
        mill.run()
    mill.write_parquet("b.parquet", id=[2], n=[2**40], more=[7])
    others: list[IngestReport] = []

    def tell(told: str) -> None:
        if told == step and not others:
            others.append(mill.run(evolve=Evolve.widen))

    done = mill.run(tell=tell, evolve=Evolve.widen)
    assert [(other.status, done.status) for other in others] == [(Status.done, Status.nothing_new)]
    assert mill.rows(columns="id, n, more")[-1] == (2, 2**40, 7)


@pytest.mark.long
@pytest.mark.parametrize("step", ["write raw.trips", "write raw.trips__ingested"])
def test_what_fails_on_an_empty_table_leaves_no_snapshot(mill: Mill, step: str) -> None:
    """Not even the one without rows that Spark has a branch begin with, however often it fails."""
    mill.duck.execute("CREATE SCHEMA raw")
    mill.duck.execute("CREATE TABLE raw.trips (id BIGINT)")
    file = mill.write_parquet("a.parquet", id=[1, 2])

    def tell(told: str) -> None:
        if told == step:
            damage(file) if step == "write raw.trips" else file.unlink()

    for _ in range(2):
        mill.write_parquet("a.parquet", id=[1, 2])
        with pytest.raises(CatalogError):
            mill.run(tell=tell)
    metadata = mill.served.server.get("namespaces/raw/tables/trips").json["metadata"]
    assert (metadata["snapshots"], metadata["refs"]) == ([], {})

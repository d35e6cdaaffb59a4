"""Where a table is found in DuckLake's rows."""

import pytest

from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.verify.snapshot_pairs import name_metadata, read_table_id
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after


@pytest.mark.parametrize("letters", whole_after(1, ["Ää", "äÄ"]))
def test_names_are_those_that_duckdb_knows(lake: FreshLake, letters: str) -> None:
    """It folds ASCII letters alone, also those of namespaces: what differs by other letters is another table."""
    duck, meta = lake.duckdb(), name_metadata(lake.metadata_schema)
    names = [(namespace, f"{letter}T") for namespace in letters for letter in letters]
    for namespace, table in names:
        duck.execute(f'CREATE SCHEMA IF NOT EXISTS "{namespace}"')
        duck.execute(f'CREATE TABLE "{namespace}"."{table}" (id INTEGER)')
    made = [one for (one,) in duck.execute(f"SELECT table_id FROM {meta}.ducklake_table ORDER BY table_id").fetchall()]
    assert len(made) == 4
    assert [read_table_id(duck, meta, TableIdent((namespace,), table)) for namespace, table in names] == made
    assert [read_table_id(duck, meta, TableIdent((namespace,), table.replace("T", "t"))) for namespace, table in names] == made
    assert read_table_id(duck, meta, TableIdent(("ö",), "ÄT")) == -1

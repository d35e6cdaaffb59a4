"""Every published type in Trino: which it refuses is what `check` warns of."""

import pytest

from tests.interop.rich_lake import RichLake
from tests.interop.trino.reader import open_trino
from tests.interop.types.tables import list_tables
from tests.support.trino.server import Trino, TrinoRefused

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("trino")]


def test_trino_reads_every_type_but_geometry(typed: RichLake, trino: Trino) -> None:
    """The same rows, counted; geometry needs a plugin that this Trino does not have."""
    reader = open_trino(trino, typed.served)
    refused: set[str] = set()
    for table in list_tables():
        try:
            (row,) = reader.find_rows(f"SELECT count(*) AS n, count(v) AS v, count(element_at(l, 1)) AS l FROM {{}}.{table.sql_name}")
        except TrinoRefused as error:
            assert "Unknown type: Geometry" in str(error)
            refused.add(table.sql_type)
            continue
        (expected,) = typed.ask(f"SELECT count(*) AS n, count(v) AS v, count(l[1]) AS l FROM lake.{table.sql_name}").to_pylist()
        assert row == expected, table
    assert refused == {"GEOMETRY"}

"""A lake that an earlier commit of this project prepared, and filled with DuckDB and PyIceberg, is served and written on as it is.

`tests/support/reference/prepared-by-8996549.tar.xz` holds the lake's database as `pg_dump --inserts --no-owner --no-privileges` writes it
(`lake.sql`), the objects below `s3://lake/prepared/` (`files`), and what that commit's server showed of each table (`known.json`): uuid,
current snapshot, snapshots, refs, and the number of rows of each snapshot.
"""

import json
import tarfile
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from psycopg import connect
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import Table

from tests.cli.test_commands import settings_for
from tests.rest.serving import make_settings, serve
from tests.support.commands import run
from tests.support.keys import open_s3
from tests.support.lakes import FreshLake, make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack

ARCHIVE = Path(__file__).parents[1] / "support/reference/prepared-by-8996549.tar.xz"
PLACE = "s3://lake/prepared"


@contextmanager
def restore(stack: SharedStack, folder: Path) -> Generator[tuple[FreshLake, dict[str, Any]]]:
    """Yield the lake of the archive in a database of its own, and what is known of its tables. The archive is unpacked in the folder."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    s3 = open_s3(stack.store)
    for file in (path for path in (folder / "files").rglob("*") if path.is_file()):
        s3.put_object(Bucket="lake", Key=f"prepared/{file.relative_to(folder / 'files')}", Body=file.read_bytes())
    lines = (folder / "lake.sql").read_text().splitlines()
    statements = "\n".join(line for line in lines if not line.startswith(("\\restrict", "\\unrestrict", "SET transaction_timeout")))
    with make_lake(stack) as fresh:
        lake = replace(fresh, data_path=f"{PLACE}/data/", iceberg_path=f"{PLACE}/iceberg/")
        with connect(lake.dsn, autocommit=True) as conn:
            conn.execute("DROP SCHEMA lake CASCADE")
            conn.execute(statements.encode())
        yield lake, json.loads((folder / "known.json").read_text())


def describe(catalog: RestCatalog, name: str) -> dict[str, Any]:
    """Return what `known.json` says of a table, as it is shown now."""
    table = catalog.load_table(name)
    metadata = table.metadata
    return {
        "uuid": str(metadata.table_uuid),
        "current": metadata.current_snapshot_id,
        "snapshots": [snapshot.snapshot_id for snapshot in metadata.snapshots],
        "refs": {ref: found.snapshot_id for ref, found in metadata.refs.items()},
        "counts": {str(snapshot.snapshot_id): count(table, snapshot.snapshot_id) for snapshot in metadata.snapshots},
        "properties": dict(metadata.properties),
    }


def count(table: Table, snapshot_id: int | None = None) -> int:
    """Return how many rows PyIceberg reads."""
    return len(table.scan(snapshot_id=snapshot_id).to_arrow())


@pytest.mark.whole
def test_a_prepared_lake_is_served_and_written_on(stack: SharedStack, tmp_path: Path) -> None:
    """Ids, refs, properties, rows and grants are those that the earlier server showed; both sides write on, and see the same.

    `serve` prepares a lake as `init` does.
    """
    with restore(stack, tmp_path) as (lake, known):
        settings = settings_for(lake)
        assert run(tmp_path, "init", settings=settings).status == 0
        for command, shown in (("grants", "list,read namespace:raw alice"), ("principal list", "alice"), ("role list", "analysts:")):
            assert run(tmp_path, *command.split(), settings=settings).out.splitlines()[0].strip() == shown
        check_tables(lake, known)


def check_tables(lake: FreshLake, known: Mapping[str, Any]) -> None:
    """Compare what a server shows with what is known, write with DuckDB and PyIceberg, and compare them."""
    with serve(make_settings(lake)) as server:
        assert server.get("namespaces/main/views/shown").status == 200
        catalog = Served(lake, server).pyiceberg().catalog
        duck = lake.duckdb()
        for name, expected in known.items():
            assert describe(catalog, name) == expected, name
            on_branches = set(expected["refs"].values()) - {expected["current"], expected["refs"].get("first")}
            for snapshot_id in set(expected["snapshots"]) - on_branches:
                rows = duck.execute(f"SELECT count(*) FROM {name} AT (VERSION => {snapshot_id})").fetchone()
                assert rows == (expected["counts"][str(snapshot_id)],), (name, snapshot_id)
            table = catalog.load_table(name)
            table.append(pa.Table.from_pylist([{"id": 9000}], schema=table.schema().as_arrow()))
            duck.execute(f"INSERT INTO {name} (id) VALUES (9001)")
            duck.execute(f"DELETE FROM {name} WHERE id IN (9000, 1)")
            rows = duck.execute(f"SELECT id FROM {name}").fetchall()
            assert sorted(catalog.load_table(name).scan().to_arrow()["id"].to_pylist()) == sorted(i for (i,) in rows)
        assert count(catalog.load_table("raw.trips"), known["raw.trips"]["refs"]["dev"]) == 89
        assert not catalog.table_exists("raw.gone")

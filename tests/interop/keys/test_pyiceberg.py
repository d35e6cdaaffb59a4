"""PyIceberg with an id and a secret and no other keys."""

from collections.abc import Callable, Mapping

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import ForbiddenError, NoSuchNamespaceError, NoSuchTableError, OAuthError
from pyiceberg.types import LongType

from tests.interop.keys.accounts import check_going_on_without_account
from tests.rest.auth.principals import Guarded, secret_of
from tests.rest.serving import WAREHOUSE

ROWS = ("a", "rows")


def open_catalog(guarded: Guarded, principal: str, secret: str | None = None, **more: str) -> RestCatalog:
    """The catalog as a principal."""
    credential = f"{principal}:{secret or secret_of(principal)}"
    more["oauth2-server-uri"] = f"{guarded.server.uri}/v1/oauth/tokens"
    catalog = RestCatalog("lake", uri=guarded.server.uri, warehouse=WAREHOUSE, credential=credential, **more)
    guarded.lake.opened.callback(catalog.close)
    return catalog


def test_a_reader_reads_and_is_refused_each_write(guarded: Guarded) -> None:
    """With what the catalog hands out alone; each refusal says so, and nothing is changed."""
    catalog = open_catalog(guarded, "reader")
    table = catalog.load_table(ROWS)
    before = guarded.lake.duckdb().execute("SELECT count(*), sum(i) FROM lake.a.rows").fetchone()
    scanned = table.scan().to_arrow()
    assert (scanned.num_rows, sum(scanned["i"].to_pylist())) == before
    for write in (
        lambda: table.append(scanned.slice(0, 1)),
        lambda: table.delete("i = 20"),
        lambda: table.overwrite(scanned.slice(0, 1)),
        lambda: table.upsert(scanned.slice(20, 1).set_column(1, "s", pa.array(["mine"])), ["i"]),
    ):
        with pytest.raises((ForbiddenError, OSError), match=r"has no right|ACCESS_DENIED|AccessDenied|Access Denied"):
            write()
    refused: Mapping[str, Callable[[], object]] = {
        "columns": lambda: table.update_schema().add_column("more", LongType()).commit(),
        "partitions": lambda: table.update_spec().add_field("i", "identity").commit(),
        "properties": lambda: table.transaction().set_properties({"a": "b"}).commit_transaction(),
        "a tag": lambda: table.manage_snapshots().create_tag(table.snapshots()[0].snapshot_id, "mine").commit(),
        "a new table": lambda: catalog.create_table(("a", "mine"), schema=scanned.schema),
        "a staged table": lambda: catalog.create_table_transaction(("a", "mine"), schema=scanned.schema),
        "a name": lambda: catalog.rename_table(ROWS, ("a", "mine")),
        "a drop": lambda: catalog.drop_table(ROWS),
        "a purge": lambda: catalog.purge_table(ROWS),
        "a namespace": lambda: catalog.create_namespace("mine"),
        "its properties": lambda: catalog.update_namespace_properties("a", updates={"a": "b"}),
        "its drop": lambda: catalog.drop_namespace("a"),
        "a registration": lambda: catalog.register_table(("a", "mine"), table.metadata_location),
    }
    for what, change in refused.items():
        with pytest.raises(ForbiddenError) as told:
            change()
        assert "has no right" in str(told.value), what
    assert guarded.lake.duckdb().execute("SELECT count(*), sum(i) FROM lake.a.rows").fetchone() == before


def test_what_is_not_its_own_is_not_there(guarded: Guarded) -> None:
    """Neither in lists nor by name."""
    catalog = open_catalog(guarded, "reader")
    assert catalog.list_namespaces() == [("a",)]
    with pytest.raises(NoSuchTableError):
        catalog.load_table(("b", "t"))
    with pytest.raises(NoSuchNamespaceError):
        catalog.list_tables("b")


@pytest.mark.whole
def test_a_writer_writes(guarded: Guarded) -> None:
    """Into a table of DuckDB's and into one of its own, and DuckDB sees the rows."""
    catalog = open_catalog(guarded, "writer")
    more = pa.table({"i": pa.array([7, 8], pa.int64()), "s": ["seven", "eight"]})
    made = catalog.create_table(("a", "made"), schema=more.schema)
    made.append(more)
    made.delete("i = 7")
    catalog.load_table(ROWS).append(more)
    conn = guarded.lake.duckdb()
    assert conn.execute("FROM lake.a.made").fetchall() == [(8, "eight")]
    assert conn.execute("SELECT count(*) FROM lake.a.rows WHERE s IN ('seven', 'eight')").fetchone() == (2,)
    assert made.refresh().scan().to_arrow().num_rows == 1
    check_going_on_without_account(guarded, "made")
    catalog.drop_table(("a", "made"))
    assert not catalog.table_exists(("a", "made"))


@pytest.mark.whole
def test_a_narrower_scope_is_kept(guarded: Guarded) -> None:
    """A writer that asked for reading alone reads alone."""
    catalog = open_catalog(guarded, "writer", scope="ns:a:r")
    assert catalog.load_table(ROWS).scan().to_arrow().num_rows > 0
    with pytest.raises(ForbiddenError):
        catalog.drop_table(ROWS)


def test_a_wrong_secret_is_told(guarded: Guarded) -> None:
    """At once, in OAuth's words."""
    with pytest.raises(OAuthError, match="invalid_client"):
        open_catalog(guarded, "reader", "wrong")

"""Iceberg's own REST server behind a route, with stock PyIceberg and Spark; the compatibility kit is in `tests/rck/test_routes.py`."""

from collections.abc import Generator
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.types import LongType

from duckicelake.gateway.route import Route
from duckicelake.pipeline.common.rest import RestCatalog as SparkCatalog
from tests.gateway.clients import LEFT, ROWS, drop_by_spark, read_left, write_by_spark
from tests.gateway.fake import routes
from tests.rest.serving import Server
from tests.support.reference.server import Reference, serve_reference
from tests.support.spark import Spark

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.xdist_group("spark")]


@pytest.fixture
def reference(tmp_path: Path) -> Generator[tuple[Reference, Server]]:
    """The server with its files in a folder, and a server with the route `other` to it."""
    with serve_reference(tmp_path / "log", {"warehouse": f"file:{tmp_path}/warehouse"}) as started:
        with routes(Route("other", started.uri)) as router:
            yield started, router


def test_pyiceberg_and_spark_do_over_the_route_what_they_do_without(reference: tuple[Reference, Server], spark: Spark) -> None:
    """Each reads what the other wrote, over the route and without it."""
    started, router = reference
    over, straight = RestCatalog("other", uri=router.uri, warehouse="other"), RestCatalog("it", uri=started.uri)
    over.create_namespace("ns")
    table = over.create_table("ns.t", ROWS.schema)
    table.append(ROWS)
    table.delete("id = 2")
    with table.update_schema() as change:
        change.add_column("more", LongType())
    over.rename_table("ns.t", "ns.v")
    assert straight.load_table("ns.v").metadata == over.load_table("ns.v").metadata
    catalog = spark.add(SparkCatalog(router.uri, "other"))
    assert spark.arrow(f"SELECT id FROM {catalog}.ns.v ORDER BY id")["id"].to_pylist() == [1, 3]
    write_by_spark(spark, catalog, "spark")
    assert read_left(straight, "spark.u") == read_left(over, "spark.u") == LEFT
    drop_by_spark(spark, catalog, "spark.u")
    assert straight.list_tables("spark") == []

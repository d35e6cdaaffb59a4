"""Clients that let the catalog plan their scans."""

from collections.abc import Iterator

import pytest
from pyiceberg.catalog.rest import RestCatalog as PyIcebergCatalog

from tests.interop.rich_lake import RichLake
from tests.rest.serving import WAREHOUSE
from tests.support.readers import PyIcebergReader, SparkReader
from tests.support.spark import Spark

MODE = {"scan-planning-mode": "server"}


@pytest.fixture(scope="session")
def planned(rich: RichLake) -> Iterator[PyIcebergReader]:
    """PyIceberg on the rich lake."""
    store = rich.served.lake.store
    keys = {"s3.access-key-id": store.access_key_id, "s3.secret-access-key": store.secret_access_key}
    place = {"s3.endpoint": store.endpoint, "s3.region": store.region}
    catalog = PyIcebergCatalog("planned", uri=rich.served.server.uri, warehouse=WAREHOUSE, **place, **keys, **MODE)
    assert catalog.supports_server_side_planning()
    yield PyIcebergReader(catalog)
    catalog.close()


@pytest.fixture(scope="session")
def planned_spark(rich: RichLake, spark: Spark) -> SparkReader:
    """Spark on the rich lake."""
    name = spark.add(rich.served.rest_catalog())
    spark.session.conf.set(f"spark.sql.catalog.{name}.scan-planning-mode", "server")
    return SparkReader(spark, name)

"""SeaweedFS's own Iceberg catalog behind a route: another maker's server, whose prefix is the bucket and whose tokens the route gets."""

import os
import subprocess
from collections.abc import Generator, Mapping
from itertools import count
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, RESTError
from pyiceberg.types import LongType

from duckicelake.embedded.object_store import get_weed
from duckicelake.gateway.route import Route, RouteSecrets
from duckicelake.pipeline.common.rest import RestCatalog as SparkCatalog
from tests.gateway.clients import LEFT, ROWS, drop_by_spark, read_left, write_by_spark
from tests.gateway.fake import routes
from tests.support.commands import find_port, is_free
from tests.support.reference.server import answers
from tests.support.spark import Spark, SparkRefused
from tests.support.waiting import wait_for

pytestmark = pytest.mark.whole

KEY, SECRET, BUCKET = "admin", "secret-of-admin", "warehouse"
PARTS = ("master", "volume", "filer", "s3", "admin")
START_SECONDS = 120.0


@pytest.fixture(scope="module")
def seaweedfs(tmp_path_factory: pytest.TempPathFactory) -> Generator[tuple[str, str]]:
    """The addresses of the catalog and of the S3 of a SeaweedFS of its own."""
    folder = tmp_path_factory.mktemp("seaweedfs")
    names = [*(f"{part}.port{kind}" for part in PARTS for kind in ("", ".grpc")), "webdav.port", "s3.port.iceberg"]
    ports = {**dict(zip(names, filter(is_free, count(find_port())), strict=False)), "s3.port.lance": 0}
    command = [get_weed(), "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-tableBucket={BUCKET}"]
    command += [f"-{name}={port}" for name, port in ports.items()]
    environ = {**os.environ, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "GOMAXPROCS": "1"}
    log: Path = folder / "log"
    with log.open("wb") as output, subprocess.Popen(command, env=environ, stdout=output, stderr=output, cwd=folder) as process:
        try:
            wait_for(lambda: process.poll() is not None or answers(ports["s3.port.iceberg"]), "SeaweedFS's catalog", START_SECONDS)
            assert process.poll() is None, log.read_text(errors="replace")[-4000:]
            catalog_uri = f"http://127.0.0.1:{ports['s3.port.iceberg']}"
            wait_for(lambda: has_bucket(catalog_uri), "the table bucket", START_SECONDS)
            yield catalog_uri, f"http://127.0.0.1:{ports['s3.port']}"
        finally:
            process.kill()
            process.wait(START_SECONDS)


def open_straight(catalog_uri: str, keys: Mapping[str, str]) -> RestCatalog:
    """Open the catalog without the route."""
    account = {"credential": f"{KEY}:{SECRET}", "oauth2-server-uri": f"{catalog_uri}/v1/oauth/tokens"}
    return RestCatalog("it", uri=catalog_uri, warehouse=f"s3://{BUCKET}", **account, **keys)


def has_bucket(catalog_uri: str) -> bool:
    """True if the catalog knows the table bucket, which SeaweedFS makes after its start."""
    try:
        open_straight(catalog_uri, {}).list_namespaces()
    except (RESTError, NoSuchNamespaceError):
        return False
    return True


def test_pyiceberg_writes_tables_of_seaweedfs_over_a_route(seaweedfs: tuple[str, str]) -> None:
    """With the route's account; what it wrote is there without the route, too."""
    catalog_uri, s3_uri = seaweedfs
    keys = {"s3.endpoint": s3_uri, "s3.access-key-id": KEY, "s3.secret-access-key": SECRET, "s3.region": "us-east-1"}
    secrets = RouteSecrets(credential=f"{KEY}:{SECRET}")
    with routes(Route("other", catalog_uri, f"s3://{BUCKET}", "oauth2", secrets)) as router:
        over = RestCatalog("other", uri=router.uri, warehouse="other", **keys)
        over.create_namespace("ns")
        table = over.create_table("ns.t", ROWS.schema)
        table.append(ROWS)
        table.append(ROWS)
        with table.update_schema() as change:
            change.add_column("more", LongType())
        again = over.load_table("ns.t")
        assert sorted(again.scan().to_arrow()["id"].to_pylist()) == [1, 1, 2, 2, 3, 3]
        assert [field.name for field in again.schema().fields] == ["id", "name", "more"]
        assert over.list_tables("ns") == [("ns", "t")]
        with pytest.raises(NoSuchTableError):
            over.load_table("ns.missing")
        straight = open_straight(catalog_uri, keys)
        assert straight.load_table("ns.t").metadata == again.metadata
        over.drop_table("ns.t")
        assert straight.list_tables("ns") == []


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_spark_writes_tables_of_seaweedfs_over_a_route(seaweedfs: tuple[str, str], spark: Spark) -> None:
    """Unpartitioned ones: SeaweedFS 4.48 itself refuses Spark's request to create a partitioned table, with and without the route."""
    catalog_uri, s3_uri = seaweedfs
    place = {"s3_endpoint": s3_uri, "s3_region": "us-east-1", "s3_access_key_id": KEY, "s3_secret_access_key": SECRET}
    keys = {"s3.endpoint": s3_uri, "s3.access-key-id": KEY, "s3.secret-access-key": SECRET, "s3.region": "us-east-1"}
    with routes(Route("other", catalog_uri, f"s3://{BUCKET}", "oauth2", RouteSecrets(credential=f"{KEY}:{SECRET}"))) as router:
        over = spark.add(SparkCatalog(router.uri, "other", **place))
        straight = spark.add(SparkCatalog(catalog_uri, f"s3://{BUCKET}", credential=f"{KEY}:{SECRET}", **place))
        write_by_spark(spark, over, "spark", partitioning="")
        assert read_left(open_straight(catalog_uri, keys), "spark.u") == LEFT
        for name in (over, straight):
            with pytest.raises(SparkRefused, match="Malformed request: Invalid request body"):
                spark.arrow(f"CREATE TABLE {name}.spark.v (id BIGINT) PARTITIONED BY (bucket(4, id))")
        drop_by_spark(spark, over, "spark.u")

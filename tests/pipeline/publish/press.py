"""One lake behind a server, and `publish` run on it by the shared Spark."""

import gc
import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import SparkSession

from duckicelake.pipeline.common.java import NoJava
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.rest import open_rest, parse_ident
from duckicelake.pipeline.publish import Published, PublishJobContext, PublishOptions, PublishReport, publish
from tests.catalog.manifest_import.making import open_place
from tests.catalog.test_many_files import make_copies
from tests.support.readers import Served
from tests.support.spark import Spark

FILES = 4300
MANIFESTS = 2
"""A full one, and one of what is left."""


@dataclass(frozen=True, slots=True)
class Press:
    """The lake and the job."""

    served: Served
    spark: Spark
    told: list[str] = field(default_factory=list[str])

    def fill(self) -> None:
        """One table with so many files, which nobody has loaded yet."""
        make_copies(self.served.lake, FILES - 1)

    def run(self, *tables: str, dry_run: bool = False, spark: bool = True, tell: Progress | None = None) -> PublishReport:
        """Run the job."""

        def open_spark() -> AbstractContextManager[SparkSession]:
            if not spark:
                raise NoJava("there is no Spark here")
            return nullcontext(self.spark.session)

        place = open_place(self.served.lake)
        desk = PublishJobContext(lambda: open_rest(self.served.rest_catalog()), place, open_spark, tell or self.told.append)
        # PySpark leaves the sockets over which rows come to the garbage collector, which says so.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            try:
                return publish(desk, PublishOptions(tuple(map(parse_ident, tables))), dry_run=dry_run)
            finally:
                gc.collect()

    def publish(self, table: str = "t", **options: Any) -> Published:
        """Run the job on one table in `main`."""
        [found] = self.run(f"main.{table}", **options).tables
        return found

    def load(self, table: str = "t") -> dict[str, Any]:
        """What the server answers of a table in `main`."""
        return self.served.server.get(f"namespaces/main/tables/{table}").json

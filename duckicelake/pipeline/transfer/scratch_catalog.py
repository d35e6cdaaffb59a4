"""Tables that Spark opens by their metadata files alone, in a catalog of this session.

An Iceberg catalog in the session's memory (JDBC, on the Derby that Spark brings) holds them. So every source is read as one fixed
metadata file, and a copy is an ordinary Iceberg table that is published only afterwards.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count

from pyspark.sql import SparkSession

from duckicelake.pipeline.common.job_context import LazySpark
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.spark_sql import quote, quote_ident, quote_text

NAMESPACE = "bench"
SPARK_CATALOG = "org.apache.iceberg.spark.SparkCatalog"
OWN = {
    "catalog-impl": "org.apache.iceberg.jdbc.JdbcCatalog",
    "uri": "jdbc:derby:memory:{name};create=true",
    "jdbc.schema-version": "V1",
    "warehouse": "memory",
    "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
}
"""A catalog that ends with the session; `{name}` is its name."""


@dataclass(frozen=True, slots=True)
class ScratchCatalog:
    """One run's session; catalogs are added to it as they are needed, one for each way to reach files."""

    spark: SparkSession
    run_id: str
    catalogs: dict[frozenset[tuple[str, str]], str] = field(default_factory=dict[frozenset[tuple[str, str]], str])
    numbers: Iterator[int] = field(default_factory=count)

    def add_catalog(self, settings: Mapping[str, str]) -> str:
        """Return the name of a Spark catalog of these settings."""
        known = frozenset(settings.items())
        if known not in self.catalogs:
            name = f"transfer_{self.run_id}_{len(self.catalogs)}"
            self.spark.conf.set(f"spark.sql.catalog.{name}", SPARK_CATALOG)
            for key, setting in ({"cache-enabled": "false"} | dict(settings)).items():
                self.spark.conf.set(f"spark.sql.catalog.{name}.{key}", setting.replace("{name}", name))
            self.catalogs[known] = name
        return self.catalogs[known]

    def open_file(self, metadata_location: str, files: Mapping[str, str]) -> str:
        """Return the table of a metadata file, as Spark's SQL names it; `files` say how to reach what it names."""
        catalog, ident = self.add_catalog(OWN | dict(files)), self._name()
        arguments = f"table => {quote_text(str(ident))}, metadata_file => {quote_text(metadata_location)}"
        self.spark.sql(f"CALL {quote(catalog)}.system.register_table({arguments})").collect()
        return quote_ident(catalog, ident)

    def describe(self, columns: str, partitions: str, location: str) -> str:
        """Return where the metadata is of a new table of columns given as DDL, which has no rows."""
        name = quote_ident(self.add_catalog(OWN), self._name())
        partitioned = f" PARTITIONED BY ({partitions})" if partitions else ""
        self.spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg{partitioned} LOCATION {quote_text(location)}")
        return self._read_metadata_location(name)

    def insert(self, name: str, rows: str) -> str:
        """Append rows to a table on the bench; returns where its metadata is now."""
        self.spark.sql(f"INSERT INTO {name} SELECT * FROM {rows}")  # noqa: S608  quoted names
        return self._read_metadata_location(name)

    def _read_metadata_location(self, name: str) -> str:
        log = self.spark.sql(f"SELECT file FROM {name}.metadata_log_entries").collect()  # noqa: S608  a quoted name
        return str(log[-1]["file"])

    def _name(self) -> TableIdent:
        return TableIdent((NAMESPACE,), f"t{next(self.numbers)}")


@dataclass(slots=True)
class LazyScratchCatalog:
    """A run's bench, set up when something is first put on it, and again after its Java is gone."""

    run_id: str
    spark: LazySpark
    bench: ScratchCatalog | None = None

    def get(self) -> ScratchCatalog:
        """Return the bench."""
        if self.bench is None:
            self.bench = ScratchCatalog(self.spark.get(), self.run_id)
        return self.bench

    def close(self) -> None:
        """Clear it away, and Spark with it."""
        self.bench = None
        self.spark.close()

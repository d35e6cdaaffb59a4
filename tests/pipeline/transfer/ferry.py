"""Two ends of a transfer: a served lake, and a folder in which Spark's own Hadoop catalog makes tables; both known to the shared Spark."""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from duckicelake.commands.jobs.session import SparkSettings
from duckicelake.commands.jobs.transfer import TransferCall, make_desk
from duckicelake.pipeline.common.reports import Progress
from duckicelake.pipeline.common.spark_session import LazySpark
from duckicelake.pipeline.transfer.job import transfer
from duckicelake.pipeline.transfer.options import TransferReport, read_options
from tests.pipeline.holding import WITHOUT_STORE
from tests.rest.serving import make_settings, serve
from tests.support.lakes import make_lake
from tests.support.readers import Served
from tests.support.shared_stack import SharedStack
from tests.support.spark import Spark, letting_go

HADOOP = {"": "org.apache.iceberg.spark.SparkCatalog", ".type": "hadoop", ".cache-enabled": "false"}


@dataclass(frozen=True, slots=True)
class Ferry:
    """The lake and its catalog's name in Spark (`here`), the warehouse folder and its name (`there`)."""

    served: Served
    spark: Spark
    here: str
    folder: Path
    there: str
    told: list[str] = field(default_factory=list[str])

    def run(self, *statements: str) -> list[dict[str, Any]]:
        """Run SQL in which `{h}` is the lake's catalog and `{t}` the Hadoop one; the rows of the last statement."""
        rows: list[dict[str, Any]] = []
        for statement in statements:
            rows = self.spark.arrow(statement.replace("{h}", self.here).replace("{t}", self.there)).to_pylist()
        return rows

    def bring(
        self, job: str, place: str, *tables: str, dry_run: bool = False, tell: Progress | None = None, **given: Any
    ) -> TransferReport:
        """Run a job, as the command would."""
        options = read_options(format_given(place, tables, **given))
        call = TransferCall(job, options, SparkSettings(), dry_run, None)
        spark = LazySpark(lambda: nullcontext(self.spark.session))
        desk = make_desk(self.served.rest_catalog(), call, spark, tell or self.told.append)
        with letting_go():
            return transfer(desk, options, dry_run=dry_run)

    def take(self, *tables: str, mode: str = "copy", **given: Any) -> TransferReport:
        """Import from the warehouse folder."""
        return self.bring("import", str(self.folder), *tables, mode=mode, **given)

    def list_here(self, namespace: str) -> list[str]:
        """The lake's tables in a namespace; none when there is no such namespace."""
        answer = self.served.server.get(f"namespaces/{namespace}/tables")
        return sorted(item["name"] for item in answer.json["identifiers"]) if answer.status == 200 else []

    def list_there(self, namespace: str) -> list[str]:
        """The tables that Spark's own catalog lists in a namespace of the warehouse; none where there is no such namespace."""
        if not self.folder.joinpath(namespace).is_dir():
            return []
        return sorted(row["tableName"] for row in self.run(f"SHOW TABLES IN {{t}}.{namespace}"))

    def load_here(self, namespace: str, name: str) -> dict[str, Any]:
        """What the lake's catalog says of a table."""
        return self.served.server.get(f"namespaces/{namespace}/tables/{name}").json["metadata"]

    def ask_duckdb(self, sql: str) -> list[tuple[Any, ...]]:
        """What DuckDB answers about the lake."""
        return self.served.lake.duckdb().execute(sql).fetchall()

    def metadata_folder(self, namespace: str, name: str) -> Path:
        """Where the warehouse keeps a table's metadata."""
        return self.folder / namespace / name / "metadata"


def format_given(place: str, tables: tuple[str, ...], **given: Any) -> dict[str, Any]:
    """The parameters of the command by name, as far as they are given."""
    none = {"form": "auto", "properties": None, "property": None, "no_verify": False}
    return {"place": place, "tables": list(tables), **none, **given}


def write_properties(folder: Path, properties: Mapping[str, str]) -> dict[str, Any]:
    """Properties in a file, as the parameter of the command."""
    path = folder / "properties.toml"
    path.write_text("".join(f"{json.dumps(name)} = {json.dumps(text)}\n" for name, text in properties.items()))
    return {"properties": path}


def describe(report: TransferReport) -> list[tuple[str, str, int | None]]:
    """What became of each: its name, how it ended, and how many rows were compared."""
    return [(one.subject, str(one.verdict), one.rows) for one in report.moved]


def check_compared(report: TransferReport, *checked: str) -> list[str]:
    """Tables are the same by that, and the report for machines says so; their checksums."""
    rows = json.loads(report.format_json())["moved"]
    assert [row["checked"] for row in rows] == [list(checked)] * len(rows), rows
    assert all(row["source_checksum"] == row["target_checksum"] and row["rows"] == row["target_rows"] for row in rows), rows
    assert all(len(row["source_checksum"]) == 64 for row in rows), rows
    return [row["source_checksum"] for row in rows]


def check_signed(report: TransferReport, metadata: Mapping[str, Any]) -> None:
    """Every snapshot of a table names the job, the run and the versions that made it."""
    wanted = {"duckicelake.job": report.job, "duckicelake.run-id": report.run_id}
    wanted |= {f"duckicelake.version.{name}": text for name, text in report.versions.items()}
    assert report.run_id, report
    assert report.versions.keys() == {"duckicelake", "pyspark"}, report
    found = [{name: text for name, text in one["summary"].items() if name.startswith("duckicelake.")} for one in metadata["snapshots"]]
    assert found == [wanted] * max(1, len(found)), f"{found} is not all {wanted}"


@contextmanager
def open_ferry(stack: SharedStack, spark: Spark, folder: Path) -> Generator[Ferry]:
    """Both ends on the local disk; the lake takes in what lies in the warehouse."""
    warehouse = folder / "hadoop"
    with (
        make_lake(stack, str(folder / "lake")) as lake,
        serve(make_settings(lake, allowed_locations=(str(warehouse),), **WITHOUT_STORE)) as server,
    ):
        served = Served(lake, server)
        here = served.spark(spark).catalog
        spark.session.conf.set(f"spark.sql.catalog.{here}.io-impl", "org.apache.iceberg.hadoop.HadoopFileIO")
        there = f"hadoop_{here}"
        for key, value in (HADOOP | {".warehouse": str(warehouse)}).items():
            spark.session.conf.set(f"spark.sql.catalog.{there}{key}", value)
        yield Ferry(served, spark, here, warehouse, there)

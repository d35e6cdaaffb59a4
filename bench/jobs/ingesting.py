"""`ingest` of Parquet files beside Spark alone that reads them and writes the same rows: to a disk, to the store, to a table."""

import tempfile
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from bench.jobs.verifying import CREATE, INSERT, TABLE
from bench.jobs.workshop import Workshop, open_workshop
from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import NAMESPACE, Stand
from bench.statistics import percentile
from duckicelake.pipeline.common import storage
from duckicelake.pipeline.common.java import source_jars
from duckicelake.pipeline.common.rest import parse_ident
from duckicelake.pipeline.ingest.job import ingest
from duckicelake.pipeline.ingest.options import IngestOptions

FILES = 4
BESIDE = ("folder", "store", "append")
COMMITTER = "spark.hadoop.mapreduce.fileoutputcommitter.algorithm.version"
"""Which of Hadoop's ways to a finished file: by 2 an object of a store is copied once, by 1 twice."""
CODEC = "zstd"
"""What Iceberg's writers use unless a table says otherwise: Spark writes the same Parquet then."""


def measure_ingest(stand: Stand, scale: Scale) -> Result:
    """Return what `ingest` costs, and Spark writing Parquet to a folder, Parquet to the store, and rows to a table of the lake, by turns.

    The first turn is the cold one. All four read the same files of this machine; the folder is on it too, and costs no store anything.
    """
    with tempfile.TemporaryDirectory(prefix="duckicelake-bench-") as scratch:
        source = Path(scratch, "source")
        source.mkdir()
        _write_source(stand, source, scale.job_rows)
        with open_workshop(stand, Path(scratch), source_jars("s3://"), {COMMITTER: "2"}) as shop:
            rows = [_measure_turn(shop, source, turn, scale.job_rows) for turn in range(scale.job_turns + 1)]
    names = [f"{kind}_over_{name}" for name in BESIDE for kind in ("cpu", "wall")]
    medians = {f"{name}_median_warm": percentile([float(row[name] or 0) for row in rows[1:]], 0.5) for name in names}
    facts: dict[str, Cell] = {"rows": scale.job_rows, **medians}
    return Result(f"ingest of {scale.job_rows} rows in {FILES} files of Parquet", rows, facts)


def _write_source(stand: Stand, source: Path, count: int) -> None:
    statement = CREATE.replace(f"CREATE TABLE {TABLE}", "CREATE TEMP TABLE source")
    stand.duckdb.execute(statement)
    stand.duckdb.execute(INSERT.replace(f"INSERT INTO {TABLE}", "INSERT INTO temp.source"), [count])
    for place in range(FILES):
        part = f"SELECT * FROM temp.source WHERE id % {FILES} = {place}"
        stand.duckdb.execute(f"COPY ({part}) TO '{source / str(place)}.parquet' (FORMAT parquet)")
    stand.duckdb.execute("DROP TABLE temp.source")


def _measure_turn(shop: Workshop, source: Path, turn: int, count: int) -> dict[str, Cell]:
    read = partial(shop.spark.read.parquet, str(source))
    written = str(shop.folder / f"written_{turn}")
    folder, _ = shop.measure(lambda: read().write.option("compression", CODEC).parquet(written))
    uri, keys = _find_store(shop)
    store, _ = shop.measure(lambda: read().write.options(**keys).option("compression", CODEC).parquet(f"{uri}/plain_{turn}"))
    append, _ = shop.measure(lambda: read().writeTo(shop.name(f"appended_{turn}")).create())
    ident = parse_ident(f"{NAMESPACE}.ingested_{turn}")
    own, report = shop.measure(lambda: ingest(shop.desk, IngestOptions(source=str(source), table=ident)))
    assert (report.rows_in, report.rows_out) == (count, count), report
    costs = {"folder": folder, "store": store, "append": append, "ingest": own}
    return {
        "turn": turn,
        **{f"{name}_cpu_ms": spent.engines_ms for name, spent in costs.items()},
        **{f"{name}_wall_ms": spent.wall_ms for name, spent in costs.items()},
        **{f"cpu_over_{name}": own.engines_ms / costs[name].engines_ms for name in BESIDE},
        **{f"wall_over_{name}": own.wall_ms / costs[name].wall_ms for name in BESIDE},
    }


def _find_store(shop: Workshop) -> tuple[str, dict[str, str]]:
    """Where in the lake's bucket objects may be, and what Spark's writer is told to reach it."""
    facts = shop.facts
    found = {storage.ENDPOINT: facts.s3_endpoint, storage.REGION: facts.s3_region}
    found |= {storage.KEY_ID: facts.s3_access_key_id, storage.SECRET: facts.s3_secret_access_key}
    bucket = urlsplit(facts.ducklake_data_path).netloc
    return f"s3a://{bucket}/plain", storage.open_store({name: text for name, text in found.items() if text}).format_settings()

"""Spark in this process on a stand's lake, and what it spends: CPU time by process, wall time, requests for bytes."""

import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession

from bench.accounting import Meter
from bench.stand import NAMESPACE, Stand
from duckicelake.commands.embedded import join_home
from duckicelake.commands.facts import Facts, get_facts
from duckicelake.commands.jobs.session import CATALOG, get_cache_folder, to_catalog
from duckicelake.config import read_settings
from duckicelake.embedded.home import Home, open_home
from duckicelake.pipeline.common.java import Jar
from duckicelake.pipeline.common.rest import open_rest
from duckicelake.pipeline.common.spark_session import JobContext, SparkPlan, add_catalog, spark_session

THREADS = 2
MEMORY = "3g"


@dataclass(frozen=True, slots=True)
class Spent:
    """CPU time of Spark's Java and Python, of this process (DuckDB and the driver), and of the servers; and wall time."""

    spark_ms: float
    driver_ms: float
    servers_ms: float
    wall_ms: float

    @property
    def engines_ms(self) -> float:
        """CPU time of both engines together."""
        return self.spark_ms + self.driver_ms


@dataclass(frozen=True, slots=True)
class Workshop:
    """A stand with a Spark session of this process."""

    stand: Stand
    spark: SparkSession
    facts: Facts
    home: Home
    folder: Path

    @property
    def desk(self) -> JobContext:
        """What jobs work with; nobody hears of their steps."""
        catalog = to_catalog(self.facts)
        return JobContext(self.spark, CATALOG, lambda: open_rest(catalog), lambda _: None)

    def name(self, table: str) -> str:
        """A table of the benchmarks in Spark's SQL."""
        return f"{CATALOG}.{NAMESPACE}.{table}"

    def measure(self, work: Callable[[], Any]) -> tuple[Spent, Any]:
        """Do something once; returns what it cost, and what it returned."""
        context: Any = SparkContext
        meter = Meter({"spark": context._gateway.proc.pid, **self.stand.pids})
        before, own, began = meter.read_cpu_ms(), time.process_time(), time.perf_counter()
        done = work()
        wall_ms, mine, after = (time.perf_counter() - began) * 1000, (time.process_time() - own) * 1000, meter.read_cpu_ms()
        cost = {name: after[name] - before[name] for name in before}
        spark = cost.pop("spark")
        return Spent(spark, mine, sum(cost.values()), wall_ms), done


@contextmanager
def open_workshop(stand: Stand, scratch: Path, jars: Sequence[Jar] = (), conf: Mapping[str, str] | None = None) -> Generator[Workshop]:
    """Start Spark for the block, with two threads, whatever the machine has."""
    home = open_home(stand.home)
    found = get_facts(join_home(read_settings({"home": stand.home}), home), home, None)
    # A server answers before it says on the home where it is.
    facts = replace(found, catalog_uri=f"http://127.0.0.1:{stand.server.port}")
    plan = SparkPlan(get_cache_folder(), scratch / "spark", threads=THREADS, driver_memory=MEMORY, jars=tuple(jars), conf=conf or {})
    with spark_session(plan, os.environ, lambda _: None) as spark:
        add_catalog(spark, CATALOG, to_catalog(facts))
        yield Workshop(stand, spark, facts, home, scratch)

"""Kafka Connect: Iceberg's sink, by the properties that `connect` prints, from a broker's topic into the lake."""

import os
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from duckdb import DuckDBPyConnection

from duckicelake.commands.snippets import format_kafka_connect
from tests.outside.java_program import (
    JAVA,
    JavaProgram,
    ProgramRefused,
    count_rows,
    fetch_program,
    judge_check,
    list_classpath,
    start_program,
    wait_until,
)
from tests.outside.results import Result
from tests.outside.stand import Stand
from tests.support.commands import find_ports

KAFKA, ICEBERG = "3.9.1", "1.11.0"
SOURCES = Path(__file__).parent / "kafka"
BROKER = """
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://{broker},CONTROLLER://{controller}
advertised.listeners=PLAINTEXT://{broker}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@{controller}
log.dirs={data}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
transaction.abort.timed.out.transaction.cleanup.interval.ms=500
"""
WORKER = """
bootstrap.servers={broker}
listeners=http://{rest}
key.converter=org.apache.kafka.connect.storage.StringConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
value.converter.schemas.enable=false
offset.storage.file.filename={data}
offset.flush.interval.ms=500
consumer.session.timeout.ms=6000
session.timeout.ms=6000
transaction.timeout.ms=6000
"""
"""What a killed worker holds is free for the next one after six seconds. The sink looks whether it is to commit at each flush, which is
every minute otherwise.
"""
COMMITS = "iceberg.control.commit.interval-ms=1000\n"
"""The sink commits every five minutes otherwise."""
FIRST, LATER = '{"id": %1$d, "name": "n%1$d"}', '{"id": %1$d, "name": "n%1$d", "half": %1$d.5}'
SENT_COUNT = 10_000


@dataclass(frozen=True, slots=True)
class Kafka:
    """A broker, and the words that start a worker of Kafka Connect with the sink."""

    broker: JavaProgram
    words: list[str]
    log: Path

    @contextmanager
    def start_worker(self) -> Generator[None]:
        """Run a worker, which is killed at the end."""
        with self.log.open("a") as log:
            process = subprocess.Popen(self.words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.kill()
            process.wait()


@contextmanager
def start(folder: Path, stand: Stand) -> Generator[Kafka]:
    """Start a broker with the topics that the sink's text names. It is killed at the end."""
    java = [*JAVA, "-Xmx400m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", *list_classpath(folder)]
    broker, controller, rest = (f"127.0.0.1:{port}" for port in find_ports(3))
    with tempfile.TemporaryDirectory() as scratch:
        names = {"broker": broker, "controller": controller, "rest": rest}
        written = {
            "broker": BROKER.format(data=f"{scratch}/data", **names),
            "worker": WORKER.format(data=f"{scratch}/offsets", **names),
            "sink": format_kafka_connect(stand.facts) + COMMITS,
        }
        paths = {name: Path(scratch) / f"{name}.properties" for name in written}
        for name, text in written.items():
            paths[name].write_text(text)
        formatting = [*java, "kafka.tools.StorageTool", "format", "-t", "AAAAAAAAAAAAAAAAAAAAAQ", "-c", str(paths["broker"])]
        subprocess.run(formatting, check=True, capture_output=True)
        with start_program([*java, "KafkaProgram", str(paths["broker"]), broker], folder / "log", os.environ) as program:
            for topic in ("control-iceberg", "events"):
                program.ask("topic", topic)
            words = [*java, "org.apache.kafka.connect.cli.ConnectStandalone", str(paths["worker"]), str(paths["sink"])]
            (folder / "worker-log").unlink(missing_ok=True)
            yield Kafka(program, words, folder / "worker-log")


def run(cache: Path, stand: Stand, chosen: list[str]) -> dict[str, Result]:
    """Run the checks that are chosen, or all; the results by check."""
    folder = fetch_program(cache, "kafka", SOURCES, {"kafka": KAFKA, "iceberg": ICEBERG})
    with stand.lake.duckdb() as conn:
        results: dict[str, Result] = {}
        for name, check in SINKS.items():
            if not chosen or name in chosen:
                conn.execute("DROP TABLE IF EXISTS events")
                results[name] = judge_check(partial(check, folder, stand, conn))
        return results


def check_restart(folder: Path, stand: Stand, conn: DuckDBPyConnection) -> None:
    """Each message is a row once, in a table that the sink makes and whose columns it adds, although its worker is killed after a
    commit. DuckDB inserts and merges in between.
    """
    with start(folder, stand) as kafka:
        kafka.broker.ask("send", f"events\t1\t{SENT_COUNT // 2}\t{FIRST}")
        with kafka.start_worker():
            wait_until(lambda: has_table(conn, "events") and count_rows(conn, "events") > 0)
            kafka.broker.ask("send", f"events\t{SENT_COUNT // 2 + 1}\t{SENT_COUNT}\t{LATER}")
        assert count_rows(conn, "events") < SENT_COUNT, "the sink had written everything before it was killed"
        conn.execute("INSERT INTO events (id, name) VALUES (-1, 'ours')")
        conn.execute("CALL ducklake_merge_adjacent_files('lake')")
        with kafka.start_worker():
            wait_until(lambda: count_rows(conn, "events") > SENT_COUNT)
            # What was written twice would be in a later commit of the sink.
            kafka.broker.ask("send", f"events\t{SENT_COUNT + 1}\t{SENT_COUNT + 1}\t{LATER}")
            wait_until(lambda: count_rows(conn, f"events WHERE id = {SENT_COUNT + 1}") > 0)
    found = conn.execute("SELECT id, name, half FROM events ORDER BY id").fetchall()
    sent = [(number, f"n{number}", number + 0.5 if number > SENT_COUNT // 2 else None) for number in range(1, SENT_COUNT + 2)]
    assert found == [(-1, "ours", None), *sent], f"{len(found)} rows of {len({row[0] for row in found})} ids"


def check_rewind(folder: Path, stand: Stand, conn: DuckDBPyConnection) -> None:
    """A coordinator that reads all of its events again, because it lost how far it came, commits nothing again: the lake keeps what the
    sink wrote into its snapshots, through a merge too.
    """
    with start(folder, stand) as kafka:
        with kafka.start_worker():
            for first in (1, 501):
                kafka.broker.ask("send", f"events\t{first}\t{first + 499}\t{FIRST}")
                wait_until(lambda last=first + 499: has_table(conn, "events") and count_rows(conn, "events") == last)
        conn.execute("CALL ducklake_merge_adjacent_files('lake')")
        wait_until(lambda: rewinds(kafka.broker))
        with kafka.start_worker():
            kafka.broker.ask("send", f"events\t1001\t1001\t{FIRST}")
            wait_until(lambda: count_rows(conn, "events WHERE id = 1001") > 0)
    found = conn.execute("SELECT count(*), count(DISTINCT id) FROM events").fetchone()
    assert found == (1001, 1001), f"rows and ids: {found}"


def rewinds(broker: JavaProgram) -> bool:
    """Set the coordinator's offsets to the beginning; False while the killed coordinator is a member of its group."""
    try:
        broker.ask("rewind", "connect-iceberg-sink-coord\tcontrol-iceberg")
    except ProgramRefused:
        return False
    return True


def has_table(conn: DuckDBPyConnection, table: str) -> bool:
    """True if the lake has a table of this name."""
    return conn.execute("SELECT 1 FROM duckdb_tables() WHERE table_name = $1", [table]).fetchone() is not None


SINKS: Mapping[str, Callable[[Path, Stand, DuckDBPyConnection], None]] = {
    "sink/restart": check_restart,
    "sink/rewind": check_rewind,
}

"""A Postgres that is stopped at once (as by a crash) at any effect of a commit: what it acknowledged is there, nothing is half done."""

import random
import signal
from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import psycopg
import pytest

from duckicelake.embedded.ducklake import LakeAddress, create_lake
from duckicelake.embedded.home import Home, choose_ports, get_keys
from duckicelake.embedded.processes import Service, start_process, stop_process
from duckicelake.embedded.stack import plan_postgres, prepare_database
from duckicelake.lake.install import install
from tests.crashes.asked import Stand
from tests.crashes.kinds import KINDS
from tests.crashes.process import Running, running
from tests.crashes.story import BEYOND, DONE, UNKNOWN, Onlooker, break_off, check_retry, is_ready, list_effects, open_onlooker
from tests.rest.serving import make_settings
from tests.rest.writing.client import open_client
from tests.support.keys import format_s3_keys
from tests.support.lakes import FreshLake
from tests.support.shared_stack import METADATA_SCHEMA, SharedStack
from tests.support.waiting import wait_for

SEED = 20261122
STEPS = 3


@dataclass(slots=True)
class Cluster:
    """A Postgres of the test's own, as `serve` runs it."""

    job: Service
    process: Popen[bytes]

    def stop_at_once(self) -> None:
        """End it without a checkpoint, as `pg_ctl stop -m immediate` does."""
        self.process.send_signal(signal.SIGQUIT)
        self.process.wait(30)

    def start(self) -> None:
        """Start it again; it recovers from its log."""
        self.process = start_process(self.job.command)
        wait_for(self.job.is_ready, "Postgres to answer")


@dataclass(frozen=True, slots=True)
class Place:
    """A lake in that Postgres, and the one server of it."""

    cluster: Cluster
    lake: FreshLake
    run: Running

    def open_onlooker(self) -> Onlooker:
        """Return somebody who looks at the lake until its Postgres is stopped."""
        return open_onlooker(self.lake, self.lake.duckdb())

    def ask(self, look: Onlooker) -> Stand:
        """Return who makes tables."""
        return Stand(open_client(self.run.server, self.lake), look.duck)


@pytest.fixture
def place(stack: SharedStack, tmp_path: Path) -> Generator[Place]:
    """A cluster, a lake and a server, all of this test alone."""
    home = Home(tmp_path)
    keys, port = get_keys(home), choose_ports(home, ["postgres"], {})["postgres"]
    job = plan_postgres(home, keys, port)
    cluster = Cluster(job, start_process(job.command))
    try:
        wait_for(job.is_ready, "Postgres to answer")
        lake = make_lake(stack, prepare_database(keys, port).dsn, tmp_path.name)
        with lake.opened, running(make_settings(lake)) as run:
            lake.duckdb().execute("CREATE TABLE probe (i bigint)")
            yield Place(cluster, lake, run)
    finally:
        stop_process(cluster.job.command, cluster.process)


def make_lake(stack: SharedStack, dsn: str, name: str) -> FreshLake:
    """A lake in a database, its files in a folder of the shared store."""
    root = f"s3://{stack.store.bucket}/{name}"
    lake = FreshLake(name, dsn, METADATA_SCHEMA, f"{root}/data/", f"{root}/iceberg/", stack.store, Path(stack.extension_folder))
    create_lake(lake.extension_folder, LakeAddress(dsn, METADATA_SCHEMA, lake.data_path), format_s3_keys(stack.store))
    with psycopg.connect(dsn) as conn:
        install(conn, METADATA_SCHEMA, lake.iceberg_path)
    return lake


def stop(place: Place, kind: str, effect: int) -> str:
    """Stop Postgres there, start it again, look and ask again; the effect's name."""
    server, before = place.run.server, place.open_onlooker()
    asked = KINDS[kind](place.ask(before), f"{kind}_{effect}")
    snapshots = before.count_snapshots()
    name, answer = break_off(server, asked, effect, place.cluster.stop_at_once)
    if name != BEYOND:
        place.cluster.start()
    wait_for(lambda: is_ready(server), "the server to be ready")
    look = place.open_onlooker()
    assert answer is not None
    told = f"{kind} at {effect} ({name}): {answer.status} {answer.body[:200]}"
    landed = look.has_landed(server, asked, snapshots, told)
    assert answer.status == UNKNOWN or (answer.status in DONE) == landed, told
    check_retry(look, server, asked, landed, None)
    return name


def list_all(place: Place, kind: str) -> list[str]:
    """What a commit of this kind does."""
    return list_effects(place.run.server, KINDS[kind](place.ask(place.open_onlooker()), f"{kind}_whole"))


@pytest.mark.whole
def test_a_postgres_that_is_stopped_loses_nothing_it_acknowledged(place: Place) -> None:
    """At effects chosen by lot, and right before and after the commit; the server goes on without a restart."""
    chance = random.Random(SEED)
    for kind in chance.sample(sorted(KINDS), STEPS):
        stop(place, kind, chance.randrange(len(list_all(place, kind))))
    effects = list_all(place, "append")
    assert [stop(place, "append", effects.index(name)) for name in ("before COMMIT", "after COMMIT")] == ["before COMMIT", "after COMMIT"]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_postgres_may_be_stopped_at_every_effect(place: Place, kind: str) -> None:
    """At each in turn."""
    for effect in range(len(list_all(place, kind))):
        stop(place, kind, effect)

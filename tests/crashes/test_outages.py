"""Postgres or the store fails at any effect of a commit: what is answered is true, and asking again does it once."""

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Event, Thread
from urllib.parse import urlsplit

import pytest

from tests.crashes.asked import Stand
from tests.crashes.kinds import KINDS
from tests.crashes.process import Running, running
from tests.crashes.story import DONE, UNKNOWN, Onlooker, break_off, check_retry, is_ready, list_effects, open_onlooker
from tests.rest.faults.gateway import Gateway
from tests.rest.serving import make_settings
from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after
from tests.support.waiting import wait_for

SEED = 20261121
STEPS = 3
SLOW_S = 0.3
PIDS = """
SELECT pid FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class Gate(Gateway):
    """A gate before a real S3 that can also hold writes back, each for `hold_s`, or for as long as they are held back (None)."""

    def __init__(self, target: tuple[str, int]) -> None:
        super().__init__(target)
        self.hold_s: float | None = None
        self.passing = Event()
        self.passing.set()

    def takes_write(self) -> bool:
        """Wait while writes are held back."""
        self.passing.wait(self.hold_s)
        return super().takes_write()


@contextmanager
def gate_to(endpoint: str) -> Generator[Gate]:
    """A gate before the S3 at that URL, open at first."""
    parts = urlsplit(endpoint)
    with Gate((str(parts.hostname), parts.port or 80)) as gate:
        thread = Thread(target=gate.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield gate
        finally:
            gate.passing.set()
            gate.shutdown()
            thread.join()


@dataclass(frozen=True, slots=True)
class Place:
    """A lake, the one server of it, whose store lies behind a gate, and the connections to Postgres that are not the server's."""

    lake: FreshLake
    run: Running
    gate: Gate
    stand: Stand
    look: Onlooker
    others: set[int] = field(default_factory=set[int])

    def lose_postgres(self) -> None:
        """End the server's connections, as a Postgres does that is stopped at once."""
        conn = self.look.rows
        for (pid,) in conn.execute(PIDS).fetchall():
            if pid not in self.others:
                conn.execute("SELECT pg_terminate_backend(%s)", [pid])

    def lose_store(self) -> None:
        """Let the store refuse every write."""
        self.gate.is_full = True

    def hold_store(self) -> None:
        """Let the store take writes, and not answer."""
        self.gate.passing.clear()

    def slow_store(self) -> None:
        """Let the store take its time over every write."""
        self.gate.hold_s = SLOW_S
        self.gate.passing.clear()

    def mend(self) -> None:
        """Let everything work again, and wait until the server knows."""
        self.gate.hold_s = None
        self.gate.is_full = False
        self.gate.passing.set()
        wait_for(lambda: is_ready(self.run.server), "the server to be ready")


@pytest.fixture
def place(lake: FreshLake) -> Generator[Place]:
    """One server, behind a gate."""
    duck = lake.duckdb()
    duck.execute("CREATE TABLE probe (i bigint)")
    look = open_onlooker(lake, duck)
    with gate_to(lake.store.endpoint) as gate:
        others = {row[0] for row in look.rows.execute(PIDS).fetchall()}
        with running(make_settings(lake, s3_endpoint=f"http://127.0.0.1:{gate.server_port}")) as run:
            yield Place(lake, run, gate, Stand(open_client(run.server, lake), duck), look, others)


FAULTS: dict[str, Callable[[Place], None]] = {"postgres": Place.lose_postgres, "store": Place.lose_store}


def fail(place: Place, kind: str, effect: int, fault: Callable[[Place], None], statuses: Sequence[int] = (*DONE, UNKNOWN)) -> str:
    """Let it fail there, look, mend it and ask again; the effect's name. `statuses`: what may be answered of what has landed."""
    asked = KINDS[kind](place.stand, f"{kind}_{effect}")
    server, look = place.run.server, place.look
    snapshots = look.count_snapshots()
    name, answer = break_off(server, asked, effect, lambda: fault(place))
    place.mend()
    assert answer is not None
    told = f"{kind} at {effect} ({name}): {answer.status} {answer.body[:200]}"
    landed = look.has_landed(server, asked, snapshots, told)
    assert answer.status == UNKNOWN or (answer.status in DONE) == landed, told
    assert not landed or answer.status in statuses, told
    check_retry(look, server, asked, landed, None)
    return name


@pytest.mark.whole
@pytest.mark.parametrize("fault", long_after(1, FAULTS))
def test_what_fails_in_a_commit_is_told_truly(place: Place, fault: str) -> None:
    """At effects chosen by lot: done, not done, or unknown; the server goes on without a restart."""
    chance = random.Random(f"{SEED} {fault}")
    for kind in chance.sample(sorted(KINDS), STEPS):
        effects = list_effects(place.run.server, KINDS[kind](place.stand, f"{kind}_whole"))
        fail(place, kind, chance.randrange(len(effects)), FAULTS[fault])


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("fault", FAULTS)
def test_anything_may_fail_at_every_effect(place: Place, fault: str, kind: str) -> None:
    """At each in turn."""
    effects = list_effects(place.run.server, KINDS[kind](place.stand, f"{kind}_whole"))
    for effect in range(len(effects)):
        fail(place, kind, effect, FAULTS[fault])


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_slow_store_makes_a_request_slow_and_no_more(place: Place, kind: str) -> None:
    """From each object that it writes on: it is done, and answered so."""
    effects = list_effects(place.run.server, KINDS[kind](place.stand, f"{kind}_whole"))
    for effect, name in enumerate(effects):
        if name.startswith(("put", "replace")):
            fail(place, kind, effect, Place.slow_store, DONE)


@pytest.mark.long
@pytest.mark.parametrize("effect", ["put ducklak", "put "])
def test_a_store_that_never_answers_holds_a_commit_only_so_long(place: Place, effect: str) -> None:
    """Before the commit as after it: the client hears, and asking again does it once."""
    kind = "delete_positions" if effect == "put ducklak" else "append"
    effects = list_effects(place.run.server, KINDS[kind](place.stand, f"{kind}_whole"))
    fail(place, kind, next(number for number, name in enumerate(effects) if name.startswith(effect)), Place.hold_store)

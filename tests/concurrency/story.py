"""Everybody at once, until the time is over and everybody has done something."""

import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Event

from tests.concurrency.ledger import Ledger
from tests.concurrency.readers import NAMES, Looker, Scanner, Seen
from tests.concurrency.writers import Maintainer, Writer, fill
from tests.rest.serving import Server
from tests.support.lakes import FreshLake
from tests.support.readers import Served

LEAST_ROUNDS = 6
PATIENCE = 20.0


@dataclass(slots=True)
class Clock:
    """Tells everybody when to stop: after the time and enough rounds, or at once when somebody failed."""

    seconds: float
    began: float = field(default_factory=time.monotonic)
    failed: Event = field(default_factory=Event)

    def repeat(self, act: Callable[[], None], count: Callable[[], int]) -> None:
        """Act again and again; the first failure ends the story."""
        try:
            while not self._is_over(count()):
                act()
        except BaseException:
            self.failed.set()
            raise

    def _is_over(self, rounds: int) -> bool:
        passed = time.monotonic() - self.began
        if self.failed.is_set():
            return True
        assert passed < self.seconds * PATIENCE, f"only {rounds} rounds in {passed:.0f} s"
        return passed >= self.seconds and rounds >= LEAST_ROUNDS


@dataclass(frozen=True, slots=True)
class Cast:
    """Who takes part."""

    ledger: Ledger
    transferring: Sequence[Writer]
    reporting: Sequence[Writer]
    rearranging: Writer
    maintainer: Maintainer
    lookers: Sequence[Looker]
    scanners: Sequence[Scanner]

    def play(self, seconds: float) -> None:
        """Run everybody in a thread of their own; fails as the first of them did."""
        clock = Clock(seconds)
        parts: list[tuple[Callable[[], None], Callable[[], int]]] = [
            *((writer.transfer, lambda writer=writer: writer.made) for writer in self.transferring),
            *((writer.report, lambda writer=writer: writer.made) for writer in self.reporting),
            (self.rearranging.rearrange, lambda: self.rearranging.made),
            (self.maintainer.tidy, lambda: self.maintainer.done),
            *((looker.look, lambda looker=looker: looker.done) for looker in self.lookers),
            *((scanner.scan, lambda scanner=scanner: min(scanner.done, scanner.pairs * LEAST_ROUNDS)) for scanner in self.scanners),
        ]
        with ThreadPoolExecutor(len(parts)) as pool:
            running = [pool.submit(clock.repeat, act, count) for act, count in parts]
        for part in running:
            part.result()

    def list_seen(self) -> list[Seen]:
        """What all scanners saw."""
        return [seen for scanner in self.scanners for seen in scanner.seen]

    def tell(self) -> str:
        """What happened, in numbers."""
        writers = (*self.transferring, *self.reporting, self.rearranging)
        return (
            f"{len(self.ledger.commits)} commits, {sum(writer.lost for writer in writers)} lost races, "
            f"{self.maintainer.done} maintenances ({self.maintainer.lost} lost), {sum(one.done for one in self.lookers)} loads "
            f"({sum(one.unchanged for one in self.lookers)} unchanged), {len(self.list_seen())} scans, "
            f"{sum(one.pairs for one in self.scanners)} pairs, {sum(one.too_late for one in self.scanners)} too late"
        )


def gather_cast(lake: FreshLake, servers: tuple[Server, Server], seed: int) -> Cast:
    """Two writers and two readers of each kind, each reader at a server of its own."""
    ledger = Ledger()
    fill(lake.duckdb(), ledger)
    chances = (random.Random(seed + number) for number in range(100))

    def write(number: int) -> Writer:
        return Writer(lake.duckdb(), ledger, number, next(chances))

    return Cast(
        ledger,
        transferring=[write(1), write(2)],
        reporting=[write(3), write(4)],
        rearranging=write(5),
        maintainer=Maintainer(lake.duckdb(), next(chances)),
        lookers=[Looker(server, ledger, next(chances)) for server in servers],
        scanners=[Scanner(Served(lake, server).pyiceberg().catalog, ledger, next(chances)) for server in servers],
    )


def check_seen(cast: Cast) -> None:
    """Fail unless every scan gave the rows of the commits up to its snapshot."""
    seen = cast.list_seen()
    for name in NAMES:
        states = cast.ledger.list_states(name, [one.snapshot_id for one in seen if one.table == name])
        for one in seen:
            if one.table == name:
                missing, extra = states[one.snapshot_id] - one.rows, one.rows - states[one.snapshot_id]
                assert not missing and not extra, f"{name} at {one.snapshot_id}: missing {dict(missing)}, too many {dict(extra)}"

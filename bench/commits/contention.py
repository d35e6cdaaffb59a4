"""Contention: clients that all write to one table at once, and one that writes to another table beside them."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event

from bench.commits.client import Client, create_table, open_client
from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import Stand

SETTERS = (1, 8, 32)
APPENDERS = (1, 8)
HOT_WRITERS = 64
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 0.5


@dataclass(frozen=True, slots=True)
class Tally:
    """The commits of one client: those that landed, and the answers that refused one."""

    landed: int
    refused: int


def measure_contention(stand: Stand, scale: Scale) -> Result:
    """Return rates, refusals and CPU time of the whole stack for each acknowledged commit."""
    seconds = scale.contention_s
    rows: list[dict[str, Cell]] = []
    for number in SETTERS:
        clients = _open_clients(stand, f"setters_{number}", number)
        rows.append({"what": f"set-properties, {number} clients, one table", **_measure(stand, clients, set_until, seconds)})
    for number in APPENDERS:
        clients = _open_clients(stand, f"appenders_{number}", number)
        rows.append({"what": f"fast appends, {number} clients with backoff, one table", **_measure(stand, clients, append_until, seconds)})
    other = create_table(stand, "other_table")
    rows.append({"what": "set-properties, another table, alone", **_measure(stand, [other], set_until, seconds)})
    hot = _open_clients(stand, "hot", HOT_WRITERS)
    stop = Event()
    with ThreadPoolExecutor(HOT_WRITERS) as pool:
        running = [pool.submit(set_until, client, stop) for client in hot]
        rows.append({"what": f"the same beside {HOT_WRITERS} writers of a hot table", **_measure(stand, [other], set_until, seconds)})
        stop.set()
        for done in running:
            done.result()
    return Result("Contention", rows)


def _open_clients(stand: Stand, table: str, number: int) -> list[Client]:
    first = create_table(stand, table)
    first.commit(first.set_property())
    return [first, *(open_client(stand, table) for _ in range(number - 1))]


def _measure(stand: Stand, clients: Sequence[Client], write: Callable[[Client, Event], Tally], seconds: float) -> dict[str, Cell]:
    stop = Event()
    before, began = stand.meter.read_cpu_ms(), time.perf_counter()
    with ThreadPoolExecutor(len(clients)) as pool:
        running = [pool.submit(write, client, stop) for client in clients]
        time.sleep(seconds)
        stop.set()
        tallies = [done.result() for done in running]
    took, after = time.perf_counter() - began, stand.meter.read_cpu_ms()
    landed, refused = sum(tally.landed for tally in tallies), sum(tally.refused for tally in tallies)
    cpu = {f"{name}_cpu_ms": (after[name] - before[name]) / max(1, landed) for name in before}
    return {
        "per_second": landed / took,
        "cpu_ms_a_commit": sum(cpu.values()),
        **cpu,
        "refused": refused,
        "fewest_of_a_client": min(tally.landed for tally in tallies),
    }


def set_until(client: Client, stop: Event) -> Tally:
    """Set one property after the other, of the table and the snapshot that were loaded."""
    landed = refused = 0
    while not stop.is_set():
        if client.try_commit(client.set_property()):
            landed += 1
        else:
            refused += 1
    return Tally(landed, refused)


def append_until(client: Client, stop: Event) -> Tally:
    """Append one file after the other to the main branch as it was loaded; after a refusal load again and wait longer."""
    landed = refused = 0
    pause_s = FIRST_PAUSE_S
    while not stop.is_set():
        client.load()
        if client.try_commit(client.append()):
            landed, pause_s = landed + 1, FIRST_PAUSE_S
        else:
            refused, pause_s = refused + 1, min(LONGEST_PAUSE_S, pause_s * 2)
            stop.wait(pause_s)
    return Tally(landed, refused)

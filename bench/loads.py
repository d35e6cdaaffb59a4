"""One table load, measured: CPU time per server, wall time, memory."""

import time
from dataclasses import dataclass

from bench.accounting import MIB, read_peak, reset_peak
from bench.report import Cell
from bench.seed import Growing, find_tables, seed_table
from bench.stand import Stand, read_snapshot_count

WARM_UP = "warm_up"


@dataclass(frozen=True, slots=True)
class Measured:
    """What one load cost."""

    cpu_ms: dict[str, float]
    wall_ms: float
    peak_bytes: int
    body_bytes: int
    snapshot_count: int

    @property
    def total_cpu_ms(self) -> float:
        """CPU time of all servers together."""
        return sum(self.cpu_ms.values())

    def to_row(self) -> dict[str, Cell]:
        """Return the figures under their names."""
        cpu = {f"{name}_cpu_ms": spent for name, spent in self.cpu_ms.items()}
        return {**cpu, "wall_ms": self.wall_ms, "body_bytes": self.body_bytes}


def measure_load(stand: Stand, table: str) -> Measured:
    """Load a table once."""
    path, server = stand.table_path(table), stand.pids["server"]
    reset_peak(server)
    before, began = stand.meter.read_cpu_ms(), time.perf_counter()
    status, _, body = stand.server.fetch(path)
    wall_ms, after = (time.perf_counter() - began) * 1000, stand.meter.read_cpu_ms()
    if status != 200:
        raise RuntimeError(f"{path} was answered {status}: {body[:400].decode('utf-8', 'replace')}")
    cpu_ms = {name: after[name] - before[name] for name in before}
    return Measured(cpu_ms, wall_ms, read_peak(server), len(body), read_snapshot_count(body))


def restart_warm(stand: Stand) -> int:
    """Put a fresh server up, let it load one table of no interest, and return the bytes it then holds."""
    stand.restart_server()
    if not find_tables(stand.postgres, WARM_UP):
        seed_table(stand, Growing(WARM_UP, 1, 1))
    measure_load(stand, WARM_UP)
    server = stand.pids["server"]
    reset_peak(server)
    return read_peak(server)


def to_mib(size_bytes: int) -> float:
    """Return bytes as MiB."""
    return size_bytes / MIB

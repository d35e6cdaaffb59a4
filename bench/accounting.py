"""What processes cost, from /proc: CPU time of whole trees, memory, the highest memory since a mark."""

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
RESET_PEAK = "5"
"""What proc(5) wants in `clear_refs` to let VmHWM start again from the memory in use."""
SCHEDULER_CLOCK = 2
"""Which of a process's clocks counts its CPU time: see clock_getcpuclockid(3)."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """One line of /proc/PID/stat: kernel ticks of user and system time, its own and those of its ended children."""

    pid: int
    parent: int
    own_ticks: int
    ended_ticks: int


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of a set of processes. `pss` counts a page shared by n processes as 1/n; `rss` counts it n times."""

    rss: int
    pss: int


class Meter:
    """Reads the CPU time of named process trees."""

    def __init__(self, roots: Mapping[str, int]) -> None:
        self._roots = roots

    def read_cpu_ms(self) -> dict[str, float]:
        """Return the CPU-milliseconds each tree has used so far."""
        processes = list_processes()
        return {name: sum_cpu_ms(find_tree(processes.values(), root)) for name, root in self._roots.items()}


def parse_stat(text: str) -> ProcessStat:
    """Return a process from its stat line; its name, in brackets, may hold brackets and spaces."""
    pid, _, _ = text.partition(" ")
    fields = text.rpartition(")")[2].split()
    user, system, ended_user, ended_system = map(int, fields[11:15])
    return ProcessStat(int(pid), int(fields[1]), user + system, ended_user + ended_system)


def list_processes() -> dict[int, ProcessStat]:
    """Return all processes by number."""
    found: dict[int, ProcessStat] = {}
    for folder in PROC.iterdir():
        if folder.name.isdigit():
            try:
                process = parse_stat((folder / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue
            found[process.pid] = process
    return found


def find_tree(processes: Iterable[ProcessStat], root: int, without: frozenset[int] = frozenset()) -> list[ProcessStat]:
    """Return a process and all below it, but not the trees of `without`."""
    below: dict[int, list[ProcessStat]] = {}
    tree: list[ProcessStat] = []
    for process in processes:
        below.setdefault(process.parent, []).append(process)
        if process.pid == root:
            tree.append(process)
    for process in tree:
        # grows while it is walked: every process found brings its children
        tree.extend(child for child in below.get(process.pid, ()) if child.pid not in without)
    return tree


def sum_cpu_ms(processes: Iterable[ProcessStat]) -> float:
    """Return the CPU-milliseconds of these processes and of their ended children."""
    return sum(read_clock_ms(process) + to_ms(process.ended_ticks) for process in processes)


def read_clock_ms(process: ProcessStat) -> float:
    """Return a process's own CPU time: by its clock, which counts nanoseconds; by its ticks of 10 ms when it has just ended."""
    try:
        return time.clock_gettime_ns((~process.pid << 3) | SCHEDULER_CLOCK) / 1e6
    except OSError:
        return to_ms(process.own_ticks)


def to_ms(ticks: int) -> float:
    """Return kernel ticks as milliseconds."""
    return ticks * 1000 / os.sysconf("SC_CLK_TCK")


def read_memory(pids: Iterable[int]) -> Memory:
    """Return what these processes hold now; one that has ended holds nothing."""
    rss = pss = 0
    for pid in pids:
        try:
            numbers = parse_sizes((PROC / str(pid) / "smaps_rollup").read_text())
        except (FileNotFoundError, ProcessLookupError):
            continue
        rss += numbers.get("Rss", 0)
        pss += numbers.get("Pss", 0)
    return Memory(rss, pss)


def parse_sizes(text: str) -> dict[str, int]:
    """Return the bytes that lines like `Rss:  12 kB` name."""
    sizes: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if len(words) == 2 and words[1] == "kB":
            sizes[name] = int(words[0]) * 1024
    return sizes


def reset_peak(pid: int) -> None:
    """Let the process's highest memory start again from what it holds now."""
    (PROC / str(pid) / "clear_refs").write_text(RESET_PEAK)


def read_peak(pid: int) -> int:
    """Return the most bytes the process held at once since its start or the last reset."""
    return parse_sizes((PROC / str(pid) / "status").read_text())["VmHWM"]

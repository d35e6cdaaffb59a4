"""The metrics of a server with several workers: whichever worker Prometheus reaches answers for all of them.

Each worker writes its numbers to files of its own in one folder (prometheus_client's multiprocess mode); a scrape adds them up.
Files with counters of workers that ended stay as long as the server runs, so that no sum falls. Called on the event loop.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

FILE = re.compile(r"\w+_(\d+)\.db")
PARENT, CHILDREN_USER, CHILDREN_SYSTEM = 1, 13, 14
"""Where /proc/PID/stat has them, counted from the state."""
SHARE_S = 1.0
PARENTS_ALONE = frozenset({"process_start_time_seconds", "process_max_fds"})
CPU = "process_cpu_seconds"


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """The folder with the files of all workers, and the process that starts them."""

    folder: Path
    server_pid: int

    def format(self) -> bytes:
        """Return the sums over all workers in Prometheus' text format."""
        pids = {int(found[1]) for path in self.folder.iterdir() if (found := FILE.fullmatch(path.name))}
        living = sorted(pid for pid in pids if is_worker(pid, self.server_pid))
        for pid in pids.difference(living):
            for gauges in self.folder.glob(f"gauge_*_{pid}.db"):
                # another worker may be scraped at the same time
                gauges.unlink(missing_ok=True)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self.folder))
        registry.register(ServerProcesses(self.server_pid, living))
        return generate_latest(registry)


class ServerProcesses(Collector):
    """The `process_*` numbers of a server: the sum over its processes; when it started is when the first of them did."""

    def __init__(self, server_pid: int, worker_pids: Iterable[int]) -> None:
        self._server_pid = server_pid
        self._worker_pids = worker_pids

    def collect(self) -> Iterable[Metric]:
        """Return the numbers as they are now."""
        total = {metric.name: metric for metric in read_process(self._server_pid)}
        add_value(total.get(CPU), read_children_cpu_s(self._server_pid))
        for pid in self._worker_pids:
            for metric in read_process(pid):
                if metric.name not in PARENTS_ALONE:
                    add_value(total.get(metric.name), metric.samples[0].value)
        return total.values()


class SharedState:
    """Numbers that others keep, written to this worker's files whenever they have changed."""

    def __init__(self, registry: CollectorRegistry, read: Callable[[], Iterable[Metric]]) -> None:
        self._registry = registry
        self._read = read
        self._metrics: dict[str, Gauge | Counter] = {}
        self._written: dict[tuple[str, tuple[str, ...]], float] = {}
        self._is_due = False

    def write_soon(self) -> None:
        """Write what has changed within a second: once for all requests until then."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(SHARE_S, self.write)

    def write(self) -> None:
        """Write what has changed since the last time."""
        self._is_due = False
        for family in self._read():
            for sample in family.samples:
                key = sample.name, tuple(sample.labels.values())
                before = self._written.get(key)
                if before != sample.value:
                    self._written[key] = sample.value
                    self._write_one(family, sample.labels, sample.value, before or 0.0)

    def _write_one(self, family: Metric, labels: dict[str, str], value: float, before: float) -> None:
        metric = self._metrics.get(family.name)
        if metric is None:
            metric = self._metrics[family.name] = self._make_metric(family, tuple(labels))
        child = metric.labels(**labels) if labels else metric
        if isinstance(child, Gauge):
            child.set(value)
        else:
            child.inc(value - before)

    def _make_metric(self, family: Metric, labels: tuple[str, ...]) -> Gauge | Counter:
        if family.type == "gauge":
            return Gauge(family.name, family.documentation, labels, registry=self._registry, multiprocess_mode="livesum")
        return Counter(family.name, family.documentation, labels, registry=self._registry)


def read_process(pid: int) -> list[Metric]:
    """Return the `process_*` numbers of one process, none when it has ended."""
    return list(ProcessCollector(pid=lambda: pid, registry=None).collect())


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on, none when the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()
    except OSError:
        return []


def is_worker(pid: int, server_pid: int) -> bool:
    """Tell whether a process is a child of the server that runs; ids of processes are used again."""
    return read_stat(pid)[PARENT : PARENT + 1] == [str(server_pid)] and read_stat(pid)[0] != "Z"


def read_children_cpu_s(server_pid: int) -> float:
    """Return the CPU time of the server's children that have ended."""
    fields = read_stat(server_pid)
    return (int(fields[CHILDREN_USER]) + int(fields[CHILDREN_SYSTEM])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def add_value(metric: Metric | None, value: float) -> None:
    """Add to the one number of a metric."""
    if metric is not None:
        (sample,) = metric.samples
        metric.samples = [sample._replace(value=sample.value + value)]

"""The Prometheus metrics of a server, of one process or of several workers.

Layers and routes of `rest` count on the event loop; `count_report` and `observe_commit_wait` are also called on worker threads. Scrapes run
on the event loop and read /proc.

With several workers, any worker answers a scrape with the sums over all of them: each writes its numbers to its own files in one folder
(prometheus_client's multiprocess mode), and a scrape adds them up. Counter files of ended workers stay until the server stops, because a
counter must not decrease.
"""

import asyncio
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

FILE = re.compile(r"\w+_(\d+)\.db")
PARENT, CHILDREN_USER, CHILDREN_SYSTEM = 1, 13, 14
"""Positions in /proc/PID/stat, counted from the field `state`."""
SHARE_S = 1.0
PARENTS_ALONE = frozenset({"process_start_time_seconds", "process_max_fds"})
CPU = "process_cpu_seconds"


@dataclass(frozen=True, slots=True)
class WorkerFiles:
    """The folder with the metrics files of all workers, and the pid of the server process that starts them."""

    folder: Path
    server_pid: int

    def format(self) -> bytes:
        """Return the sums over all workers in Prometheus' text format."""
        pids = {int(found[1]) for path in self.folder.iterdir() if (found := FILE.fullmatch(path.name))}
        living = sorted(pid for pid in pids if is_worker(pid, self.server_pid))
        for pid in pids.difference(living):
            for gauges in self.folder.glob(f"gauge_*_{pid}.db"):
                # Another worker may answer a scrape at the same time and remove the same file.
                gauges.unlink(missing_ok=True)
        registry = CollectorRegistry()
        MultiProcessCollector(registry, str(self.folder))
        registry.register(ServerProcesses(self.server_pid, living))
        return generate_latest(registry)


class ServerProcesses(Collector):
    """The `process_*` metrics of a server: sums over its processes, and the start time of its first process."""

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
    """Metrics that other objects count, written to this worker's files when they have changed."""

    def __init__(self, registry: CollectorRegistry, read: Callable[[], Iterable[Metric]]) -> None:
        self._registry = registry
        self._read = read
        self._metrics: dict[str, Gauge | Counter] = {}
        self._written: dict[tuple[str, tuple[str, ...]], float] = {}
        self._is_due = False

    def write_soon(self) -> None:
        """Schedule a write within a second, which serves all requests until then."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(SHARE_S, self.write)

    def write(self) -> None:
        """Write the values that have changed since the last write."""
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
    """Return the `process_*` metrics of one process, empty if it has ended."""
    return list(ProcessCollector(pid=lambda: pid, registry=None).collect())


def read_stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat from `state` on, empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("latin-1").rpartition(")")[2].split()
    except OSError:
        return []


def is_worker(pid: int, server_pid: int) -> bool:
    """True if a process is a running child of the server; pids are reused, so the parent is compared."""
    return read_stat(pid)[PARENT : PARENT + 1] == [str(server_pid)] and read_stat(pid)[0] != "Z"


def read_children_cpu_s(server_pid: int) -> float:
    """Return the CPU time of the server's children that have ended."""
    fields = read_stat(server_pid)
    return (int(fields[CHILDREN_USER]) + int(fields[CHILDREN_SYSTEM])) / os.sysconf("SC_CLK_TCK") if fields else 0.0


def add_value(metric: Metric | None, value: float) -> None:
    """Add a value to a metric with a single sample."""
    if metric is not None:
        (sample,) = metric.samples
        metric.samples = [sample._replace(value=sample.value + value)]


LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0)


class Metrics:
    """The counters of one application, in their own registry. With `workers`, a scrape shows the sum over all workers of the server."""

    def __init__(self, workers: WorkerFiles | None = None) -> None:
        self.registry = registry = CollectorRegistry()
        self._workers = workers
        self._shared: list[SharedState] = []
        if workers is None:
            ProcessCollector(registry=registry)
        self._requests = Counter("duckicelake_requests", "Requests answered.", ["operation", "status"], registry=registry)
        self._seconds = Histogram(
            "duckicelake_request_seconds", "Seconds until the answer was sent.", ["operation"], registry=registry, buckets=LATENCY_BUCKETS_S
        )
        self._commit_waits = Histogram(
            "duckicelake_commit_wait_seconds",
            "Seconds that commits waited for their turn on a table.",
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )
        self._loads = Counter(
            "duckicelake_table_cache", "Table loads by what the cache held: hit, stale or miss.", ["outcome"], registry=registry
        )
        self._unavailable = Counter(
            "duckicelake_unavailable", "Answers 503: Postgres or the object store was out of reach.", ["operation"], registry=registry
        )
        self._reports = Counter("duckicelake_client_reports", "Metrics reports that clients sent.", ["type"], registry=registry)
        self._routed = Counter(
            "duckicelake_route_requests", "Requests to other catalogs.", ["route", "operation", "status"], registry=registry
        )
        self._routed_seconds = Histogram(
            "duckicelake_route_seconds",
            "Seconds until the other catalog's answer began.",
            ["route"],
            registry=registry,
            buckets=LATENCY_BUCKETS_S,
        )
        self._seconds_of: dict[str, Histogram] = {}
        self._routed_of: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        self._requests_of: dict[tuple[str, int], Counter] = {}

    def count_request(self, operation: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        requests = self._requests_of.get((operation, status))
        if requests is None:
            requests = self._requests_of[operation, status] = self._requests.labels(operation, str(status))
        latency = self._seconds_of.get(operation)
        if latency is None:
            latency = self._seconds_of[operation] = self._seconds.labels(operation)
        requests.inc()
        latency.observe(seconds)
        if status == 503:
            self._unavailable.labels(operation).inc()
        # The next scrape may reach another worker, which reads this worker's numbers from its files.
        for state in self._shared:
            state.write_soon()

    def count_routed(self, route: str, operation: str, status: int, seconds: float) -> None:
        """Count one request to another catalog."""
        routed = self._routed_of.get((route, operation, status))
        if routed is None:
            labelled = self._routed.labels(route, operation, str(status)), self._routed_seconds.labels(route)
            routed = self._routed_of[route, operation, status] = labelled
        routed[0].inc()
        routed[1].observe(seconds)

    def observe_commit_wait(self, seconds: float) -> None:
        """Count one commit that waited for its turn on a table."""
        self._commit_waits.observe(seconds)

    def count_load(self, outcome: str) -> None:
        """Count one lookup in the cache of table loads."""
        self._loads.labels(outcome).inc()

    def count_report(self, kind: str) -> None:
        """Count one metrics report of a client."""
        self._reports.labels(kind).inc()

    def add_state(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Add metrics that `read` returns at a scrape; with several workers they are written within a second after a request."""
        if self._workers is None:
            self.registry.register(StateCollector(read))
        else:
            self._shared.append(SharedState(self.registry, read))

    def format(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self.registry) if self._workers is None else self._workers.format()


class StateCollector(Collector):
    """Metrics that other objects count, read at each scrape."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Return the numbers as they are now."""
        return self._read()


def build_gauge(name: str, text: str, value: float) -> Metric:
    """Return a gauge."""
    return GaugeMetricFamily(name, text, value)


def build_gauges(name: str, text: str, labels: Sequence[str], values: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a gauge with a value for each combination of labels."""
    family = GaugeMetricFamily(name, text, labels=labels)
    for labelled, value in values.items():
        family.add_metric(labelled, value)
    return family


def build_counter(name: str, text: str, labels: Sequence[str], counted: Mapping[tuple[str, ...], float]) -> Metric:
    """Return a counter with a value for each combination of labels."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in counted.items():
        family.add_metric(values, number)
    return family

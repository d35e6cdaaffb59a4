"""What the server counts about itself, for Prometheus."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from duckicelake.rest.worker_metrics import SharedState, WorkerFiles

LATENCY_BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 40.0)


class Metrics:
    """One application's counters, in a registry of its own. `workers`: a scrape shows the sum over all workers of the server."""

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
        self._loads = Counter(
            "duckicelake_table_cache", "Table loads by what the cache held: hit, stale or miss.", ["outcome"], registry=registry
        )
        self._unavailable = Counter(
            "duckicelake_unavailable", "Answers 503: Postgres or the object store was out of reach.", ["operation"], registry=registry
        )
        self._reports = Counter("duckicelake_client_reports", "Metrics reports that clients sent.", ["type"], registry=registry)
        self._seconds_of: dict[str, Histogram] = {}
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
        # another worker may be scraped next, and cannot ask this one
        for state in self._shared:
            state.write_soon()

    def count_load(self, outcome: str) -> None:
        """Count one look into the cache of ready table loads."""
        self._loads.labels(outcome).inc()

    def count_report(self, kind: str) -> None:
        """Count one metrics report of a client."""
        self._reports.labels(kind).inc()

    def add_state(self, read: Callable[[], Iterable[Metric]]) -> None:
        """Add numbers that are read when Prometheus asks; with several workers, within a second after a request."""
        if self._workers is None:
            self.registry.register(StateCollector(read))
        else:
            self._shared.append(SharedState(self.registry, read))

    def format(self) -> bytes:
        """Return all numbers in Prometheus' text format."""
        return generate_latest(self.registry) if self._workers is None else self._workers.format()


class StateCollector(Collector):
    """Numbers that others keep, read when they are asked for."""

    def __init__(self, read: Callable[[], Iterable[Metric]]) -> None:
        self._read = read

    def collect(self) -> Iterable[Metric]:
        """Return the numbers as they are now."""
        return self._read()


def build_gauge(name: str, text: str, value: float) -> Metric:
    """Return one number that goes up and down."""
    return GaugeMetricFamily(name, text, value)


def build_counter(name: str, text: str, labels: Sequence[str], counted: Mapping[tuple[str, ...], float]) -> Metric:
    """Return numbers that only go up, by their labels."""
    family = CounterMetricFamily(name, text, labels=labels)
    for values, number in counted.items():
        family.add_metric(values, number)
    return family

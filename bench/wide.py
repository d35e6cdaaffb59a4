"""Loads of many small tables, each once in every pass: what a pass costs when nothing has changed since the last one."""

from http.client import HTTPConnection

from bench.report import Cell, Result
from bench.scale import Scale
from bench.stand import REQUEST_SECONDS, Stand

TITLE = "Passes over many small tables: CPU-milliseconds per load"
PASSES = 3
AT_ONCE = 500
"""So many tables are made in one transaction of DuckDB."""
ENTRIES, BYTES = "duckicelake_table_cache_entries", "duckicelake_table_cache_bytes"


def measure_wide(stand: Stand, scale: Scale) -> Result:
    """Return what each load of a pass over all tables costs; the first pass publishes them."""
    names = [f"wide_{number}" for number in range(scale.wide_tables)]
    for start in range(0, len(names), AT_ONCE):
        created = "".join(f"CREATE TABLE {name} (id BIGINT, name VARCHAR, day DATE);" for name in names[start : start + AT_ONCE])
        stand.duckdb.execute(f"BEGIN;{created}COMMIT")
    paths = [stand.table_path(name) for name in names]
    rows = [{"pass": number, **measure_pass(stand, paths)} for number in range(1, PASSES + 1)]
    return Result(TITLE, rows, {"kept_answers": int(stand.server.count(ENTRIES)), "kept_bytes": int(stand.server.count(BYTES))})


def measure_pass(stand: Stand, paths: list[str]) -> dict[str, Cell]:
    """Load each table once, over one connection."""
    before, sent_bytes = stand.meter.read_cpu_ms(), 0
    connection = HTTPConnection("127.0.0.1", stand.server.port, timeout=REQUEST_SECONDS)
    for path in paths:
        connection.request("GET", path)
        response = connection.getresponse()
        sent_bytes += len(response.read())
        assert response.status == 200
    connection.close()
    after = stand.meter.read_cpu_ms()
    costs = {f"{name}_cpu_ms": (after[name] - before[name]) / len(paths) for name in before}
    return {"tables": len(paths), "sent_bytes": sent_bytes, **costs}

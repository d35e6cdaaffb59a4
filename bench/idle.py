"""What `duckicelake serve` takes when nobody asks for anything: memory of all its processes, and the time it needs to start."""

from pathlib import Path

from bench.accounting import MIB, find_tree, list_processes, read_memory, sum_cpu_ms
from bench.report import Cell, Result
from bench.stand import Server, find_port, read_pid, start_server

FIRST_REQUESTS = ("/v1/config", "/v1/lake/namespaces", "/v1/lake/namespaces/main/tables")


def measure_idle(home: Path) -> Result:
    """Return the memory of everything one command starts, and how long its first and its second start take.

    The home must be unused; the second start is the warm one.
    """
    first = start_server(home, find_port())
    first.stop()
    server = start_server(home, first.port)
    try:
        start_cpu_ms = sum_cpu_ms(find_tree(list_processes().values(), server.process.pid))
        for path in FIRST_REQUESTS:
            status, _, body = server.fetch(path)
            assert status == 200, body
        rows = _measure_memory(home, server)
    finally:
        server.stop()
    facts = {"first_start_seconds": first.start_seconds, "warm_start_seconds": server.start_seconds, "warm_start_cpu_ms": start_cpu_ms}
    return Result("Idle memory of everything `serve` starts", rows, facts)


def _measure_memory(home: Path, server: Server) -> list[dict[str, Cell]]:
    processes, root = list_processes().values(), server.process.pid
    children = {name: read_pid(home, name) for name in ("postgres", "s3")}
    trees = {"server": find_tree(processes, root, frozenset(children.values()))}
    trees |= {name: find_tree(processes, pid) for name, pid in children.items()}
    trees["all"] = find_tree(processes, root)
    rows: list[dict[str, Cell]] = []
    for name, tree in trees.items():
        memory = read_memory(process.pid for process in tree)
        rows.append({"part": name, "processes": len(tree), "pss_mib": memory.pss / MIB, "rss_mib": memory.rss / MIB})
    return rows

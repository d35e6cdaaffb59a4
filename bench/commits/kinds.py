"""What single commits cost, by what they do and by how long the table's history is."""

from collections.abc import Callable

from bench.commits.client import Client, create_table, open_client
from bench.commits.costs import count_fsyncs, measure_commits
from bench.report import Cell, Result
from bench.scale import Scale
from bench.seed import Growing, seed_table
from bench.stand import Stand

Kinds = dict[str, Callable[[Client], Callable[[], list[dict[str, object]]]]]
KINDS: Kinds = {"set-properties": lambda client: client.set_property, "fast append": lambda client: client.append}


def measure_kinds(stand: Stand, scale: Scale) -> Result:
    """Return what a commit of properties and a fast append of one file cost: one writer, a short history."""
    rows: list[dict[str, Cell]] = []
    for kind, choose in KINDS.items():
        client = create_table(stand, f"commits_{kind.replace(' ', '_').replace('-', '_')}")
        client.commit(client.append())
        client.keep()
        row = measure_commits(stand, client, choose(client), scale.commits)
        rows.append({"commit": kind, **row, "fsyncs": count_fsyncs(stand, client, choose(client), scale.commits)})
    return Result("Commits of one writer: CPU-milliseconds per commit", rows)


def measure_growth(stand: Stand, scale: Scale) -> Result:
    """Return what the same commits cost tables with longer histories."""
    tables = [Growing(f"commits_at_{count}", count, 1) for count in scale.later_snapshots]
    for table in tables:
        seed_table(stand, table)
    stand.restart_server()
    rows: list[dict[str, Cell]] = []
    facts: dict[str, Cell] = {}
    for kind, choose in KINDS.items():
        costs: list[float] = []
        for table in tables:
            client = open_client(stand, table.name)
            row = measure_commits(stand, client, choose(client), scale.later_inserts)
            rows.append({"commit": kind, "snapshots": table.snapshots, **row})
            costs.append(float(row["server_without_answer_cpu_ms"] or 0))
        for table, cost in zip(tables[1:], costs[1:], strict=True):
            facts[f"{kind}_at_{table.snapshots}_over_{tables[0].snapshots}"] = cost / costs[0]
    return Result("Commits by the length of the history", rows, facts)

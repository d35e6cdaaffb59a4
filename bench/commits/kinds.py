"""What single commits cost, by what they do and by how long the table's history is."""

from collections.abc import Callable

from bench.commits.client import Client, create_table, open_client
from bench.commits.costs import Make, count_fsyncs, measure_by_turns, measure_commits
from bench.report import Cell, Result
from bench.scale import Scale
from bench.seed import Growing, seed_table
from bench.stand import Stand

Kinds = dict[str, Callable[[Client], Make]]
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
    """Return what the same commits cost tables with longer histories, with their answers, and without.

    The answer holds the whole history. What a commit costs without it is measured at the operation for several tables, which
    does the same for one and answers without a body. That operation takes another way to it, which costs every commit the same:
    only the growth counts, over the commit of the first row.
    """
    tables = [Growing(f"commits_at_{count}", count, 1) for count in scale.later_snapshots]
    for table in tables:
        seed_table(stand, table)
    stand.restart_server()
    rows: list[dict[str, Cell]] = []
    facts: dict[str, Cell] = {}
    for kind, choose in KINDS.items():
        clients = [open_client(stand, table.name) for table in tables]
        found = measure_by_turns(stand, [(client, choose(client)) for client in clients], scale.later_inserts)
        rows += [{"commit": kind, "snapshots": table.snapshots, **row} for table, row in zip(tables, found, strict=True)]
        whole, alone = ([float(row[name] or 0) for row in found] for name in ("server_cpu_ms", "server_unanswered_cpu_ms"))
        for table, answered, unanswered in zip(tables[1:], whole[1:], alone[1:], strict=True):
            name = f"{kind}_at_{table.snapshots}_over_{tables[0].snapshots}"
            facts |= {name: 1 + (unanswered - alone[0]) / whole[0], f"{name}_with_the_answer": answered / whole[0]}
    return Result("Commits by the length of the history", rows, facts)

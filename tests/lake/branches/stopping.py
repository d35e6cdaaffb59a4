"""A process that makes, merges, rebases or deletes a branch or its spare, or collects what none needs, and stops at a named step.

It is killed there. `python -m … dsn schema create|merge|delete|gc|spare|remove name step`

The name of a merge is that of a branch, or `from:into`.

A step is a function of `create`, `merge`, `delete` or `spare`: the process stops before it, or after it if the name ends in `+`.
"""

import sys
from collections.abc import Callable
from typing import Any

import psycopg

from duckicelake.lake.branches import create, delete, merge, spare
from duckicelake.lake.branches.create import BranchRequest, create_branch
from duckicelake.lake.branches.delete import collect_garbage, delete_branch
from duckicelake.lake.branches.merge import MergeRequest, merge_branch

MODULES = {"create": create, "merge": merge, "delete": delete, "gc": delete, "spare": spare, "remove": spare}
REACHED = "reached"


def stop_at(module: object, step: str) -> None:
    """Replace a function by one that says that it was reached, and then waits for ever."""
    name = step.removesuffix("+")
    original: Callable[..., Any] = getattr(module, name)

    def stopped(*arguments: Any, **named: Any) -> None:
        if step.endswith("+"):
            original(*arguments, **named)
        sys.stdout.write(f"{REACHED}\n")
        sys.stdout.flush()
        sys.stdin.read()

    setattr(module, name, stopped)


def main(dsn: str, schema: str, action: str, name: str, step: str) -> None:
    """Do it, up to the step."""
    stop_at(MODULES[action], step)
    with psycopg.connect(dsn, autocommit=True) as conn:
        if action == "create":
            create_branch(conn, schema, BranchRequest(name))
        elif action == "merge":
            merge_branch(conn, schema, MergeRequest(*name.split(":")))
        elif action == "spare":
            spare.prepare_spare(conn, schema)
        elif action == "remove":
            spare.remove_spare(conn, schema)
        elif action == "gc":
            collect_garbage(conn, schema)
        else:
            delete_branch(conn, schema, name)


if __name__ == "__main__":
    main(*sys.argv[1:])

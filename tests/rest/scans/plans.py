"""Plans as a client asks for them."""

import json
from dataclasses import dataclass
from typing import Any

from tests.rest.serving import Answer, Server

TABLE = "namespaces/main/tables/t"


@dataclass(frozen=True, slots=True)
class Planner:
    """Plans scans of one table."""

    server: Server
    table: str = TABLE

    def post(self, path: str, body: Any) -> Answer:
        """Send JSON."""
        return self.server.ask("POST", f"{self.table}/{path}", {"content-type": "application/json"}, json.dumps(body).encode())

    def ask(self, **body: Any) -> Answer:
        """Ask for a plan; underscores in names are hyphens."""
        return self.post("plan", {name.replace("_", "-"): value for name, value in body.items()})

    def plan(self, **body: Any) -> Any:
        """A plan that is complete."""
        answer = self.ask(**body)
        assert answer.status == 200, answer.body
        plan = answer.json
        assert plan["status"] == "completed"
        return plan

    def metadata(self) -> Any:
        """The table's metadata."""
        return self.server.get(self.table).json["metadata"]


def count_rows(plan: Any) -> int:
    """The rows of a plan's files, deleted ones included."""
    return sum(task["data-file"]["record-count"] for task in plan["file-scan-tasks"])


def is_(name: str, kind: str, *values: Any) -> dict[str, Any]:
    """A predicate."""
    if kind in ("in", "not-in"):
        return {"type": kind, "term": name, "values": list(values)}
    return {"type": kind, "term": name} | ({"value": values[0]} if values else {})

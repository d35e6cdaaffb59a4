"""A guarded server with principals that its lake keeps."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.rest.auth.principals import Guarded
from tests.rest.serving import Answer

RULES = "/management/v1/lake"


@dataclass(slots=True)
class Managed:
    """The server as its administrator and as principals of the lake, whose secrets it remembers."""

    guarded: Guarded
    secrets: dict[str, str] = field(default_factory=dict[str, str])

    def manage(self, method: str, path: str, body: Any = None, who: str = "admin") -> Answer:
        """Ask the management interface."""
        return self.guarded.ask(who, method, f"{RULES}/{path}", body)

    def add(self, name: str) -> None:
        """Add a principal."""
        answer = self.manage("POST", "principals", {"name": name})
        assert answer.status == 200, answer.body
        assert answer.headers["cache-control"] == "no-store"
        self.secrets[name] = answer.json["secret"]

    def rotate(self, name: str) -> None:
        """Give a principal another secret."""
        answer = self.manage("POST", f"principals/{name}/rotate")
        assert answer.status == 200, answer.body
        self.secrets[name] = answer.json["secret"]

    def give(self, privileges: str, on: str, to: str) -> None:
        """Grant."""
        assert self.manage("POST", "grants", given(privileges, on, to)).status == 204

    def take(self, privileges: str, on: str, to: str) -> None:
        """Revoke."""
        assert self.manage("POST", "grants/revoke", given(privileges, on, to)).status == 204

    def ask_token(self, name: str, scope: str = "catalog") -> Answer:
        """Ask for a token as a principal of the lake."""
        return self.guarded.ask_token({"grant_type": "client_credentials", "scope": scope}, (name, self.secrets[name]))

    def token(self, name: str, scope: str = "catalog") -> Mapping[str, str]:
        """The header with a new token."""
        return {"Authorization": f"Bearer {self.ask_token(name, scope).json['access_token']}"}

    def ask(self, name: str, method: str, path: str, body: Any = None) -> Answer:
        """Ask as a principal of the lake."""
        return self.guarded.server.ask(method, path, self.token(name), None if body is None else json.dumps(body).encode())

    def statuses(self, name: str, *paths: str) -> Sequence[int]:
        """What a principal gets for some paths."""
        token = self.token(name)
        return [self.guarded.server.get(path, token).status for path in paths]


def given(privileges: str, on: str, to: str) -> dict[str, Any]:
    """The body that gives or takes privileges."""
    return {"privileges": privileges.split(","), "on": on, "to": to}

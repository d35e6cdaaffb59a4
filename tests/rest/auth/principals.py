"""Principals of a guarded server, and how they ask."""

import base64
import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from tests.rest.serving import Answer, Server, make_settings, serve
from tests.support.lakes import FreshLake

GRANTS: Mapping[str, str] = {
    "reader": "ns:a:r",
    "writer": "ns:a:rw",
    "blind": "ns:a:w",
    "owner": "ns:a:*",
    "nested": "ns:deep.er:r",
    "stranger": "ns:elsewhere:rw",
    "admin": "*",
}
TABLES = (
    "CREATE TABLE {0}.t AS SELECT range AS i FROM range(10)",
    "CREATE TABLE {0}.other AS SELECT 1 AS i",
    "CREATE VIEW {0}.v AS SELECT 1 AS i",
)


@dataclass(frozen=True, slots=True)
class Guarded:
    """A server that wants a token, and the lake behind it."""

    lake: FreshLake
    server: Server

    def ask_token(self, form: Mapping[str, str], basic: tuple[str, str] | None = None) -> Answer:
        """Ask for a token."""
        headers = {"Content-Type": "application/x-www-form-urlencoded"}
        if basic is not None:
            headers["Authorization"] = "Basic " + base64.b64encode(":".join(basic).encode()).decode()
        return self.server.ask("POST", "/v1/oauth/tokens", headers, urlencode(form).encode())

    def token(self, principal: str, scope: str = "catalog") -> str:
        """A token of a principal."""
        return self.ask_token({"grant_type": "client_credentials", "scope": scope}, (principal, secret_of(principal))).json["access_token"]

    def ask(self, principal: str, method: str, path: str, body: Any = None, **headers: str) -> Answer:
        """Ask as a principal."""
        sent = {"Authorization": f"Bearer {self.token(principal)}"} | {name.replace("_", "-"): told for name, told in headers.items()}
        return self.server.ask(method, path, sent, None if body is None else json.dumps(body).encode())

    def get(self, principal: str, path: str, **headers: str) -> Answer:
        """Send a GET as a principal."""
        return self.ask(principal, "GET", path, **headers)


def secret_of(principal: str) -> str:
    """The secret of a principal."""
    return f"secret-of-{principal}"


@contextmanager
def guard(lake: FreshLake, **changed: Any) -> Generator[Guarded]:
    """A guarded server on a lake with the namespaces a, b and deep.er, each with two tables and a view."""
    conn = lake.duckdb()
    made = [made.format(name) for name in ("a", "b", '"deep␟er"') for made in ("CREATE SCHEMA {0}", *TABLES)]
    # One transaction takes a twelfth of the time of twelve.
    conn.execute("; ".join(["BEGIN", *made, "COMMIT"]))
    clients = ",".join(f"{name}:{secret_of(name)}|{grants}" for name, grants in GRANTS.items())
    with serve(make_settings(lake, require_auth=True, oauth_clients=clients, **changed)) as server:
        yield Guarded(lake, server)

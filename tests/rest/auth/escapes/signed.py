"""Requests to the store that the catalog signed, sent as they are, or with something added."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection
from typing import Any
from urllib.parse import quote, urlsplit

from tests.rest.auth.principals import Guarded
from tests.rest.serving import Answer

REFUSED = frozenset({400, 403})


@dataclass(frozen=True, slots=True)
class SigningClient:
    """Somebody who has no keys, and has requests for one table signed."""

    guarded: Guarded
    principal: str
    table: str
    token: str = field(repr=False)

    @property
    def endpoint(self) -> str:
        """Where the store is."""
        return self.guarded.lake.store.endpoint

    def ask(self, method: str, path: str, headers: Mapping[str, str] | None = None) -> Answer:
        """Ask for a signature of a request to that path of the store, which is told as it is written."""
        told = {name: [value] for name, value in (headers or {}).items()}
        return self.ask_for({"method": method, "uri": self.endpoint + path, "region": "us-east-1", "headers": told})

    def ask_for(self, body: Mapping[str, Any]) -> Answer:
        """Ask for a signature of whatever that is."""
        sent = {"Authorization": f"Bearer {self.token}"}
        return self.guarded.server.ask("POST", f"{self.table}/sign", sent, json.dumps(body).encode())

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> tuple[int, bytes]:
        """Have a request signed and send it; the refusal to sign is the answer, if it is one."""
        answer = self.ask(method, path, headers)
        if answer.status != 200:
            return answer.status, answer.body
        return self.send_signed(answer, method, body, headers)

    def send_signed(
        self, answer: Answer, method: str, body: bytes = b"", headers: Mapping[str, str] | None = None, target: str | None = None
    ) -> tuple[int, bytes]:
        """Send a signed request, maybe with other headers and to another target than it was signed for."""
        uri = urlsplit(answer.json["uri"])
        added = {name: ", ".join(values) for name, values in answer.json["headers"].items()}
        connection = HTTPConnection(uri.netloc, timeout=30)
        try:
            connection.request(method, target or f"{uri.path}{'?' * bool(uri.query)}{uri.query}", body, {**added, **(headers or {})})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()


def sign_as(guarded: Guarded, principal: str, table: str) -> SigningClient:
    """A principal without keys."""
    return SigningClient(guarded, principal, table, guarded.token(principal))


def to_path(key: str) -> str:
    """The path of an object of the lake's bucket."""
    return f"/lake/{quote(key)}"

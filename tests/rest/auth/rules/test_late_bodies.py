"""Bodies that are held back: what a request may do is found when all of it is there, and it is not waited for without end."""

import json
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from tests.rest.auth.principals import guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import BASE, Server
from tests.support.lakes import FreshLake

T = "namespaces/a/tables/t"
BODY = json.dumps({"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "1"}}]}).encode()
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"


@contextmanager
def holding_back(server: Server, sent: Mapping[str, str]) -> Generator[socket.socket]:
    """A commit whose body the server waits for: it has asked for it."""
    head = [f"POST {BASE}/{T} HTTP/1.1", "Host: x", f"Content-Length: {len(BODY)}", "Expect: 100-continue", "Connection: close"]
    lines = [*head, *(f"{name}: {told}" for name, told in sent.items())]
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as wire:
        wire.sendall("\r\n".join([*lines, "", ""]).encode())
        assert wire.recv(len(GO_ON), socket.MSG_WAITALL) == GO_ON
        yield wire


def read_status(wire: socket.socket) -> int:
    """The status of the answer, which is read to its end."""
    told = b"".join(iter(lambda: wire.recv(65536), b""))
    return int(told.split(b" ", 2)[1])


def test_a_body_that_is_held_back_outlives_no_revoke(managed: Managed) -> None:
    """Nor the principal itself: what is taken before the body has come is taken."""
    managed.add("alice")
    managed.give("read,write", "table:a.t", "alice")
    token = managed.token("alice")
    with holding_back(managed.guarded.server, token) as wire:
        wire.sendall(BODY)
        assert read_status(wire) == 200
    with holding_back(managed.guarded.server, token) as wire:
        wire.sendall(BODY[:-1])
        managed.take("write", "table:a.t", "alice")
        wire.sendall(BODY[-1:])
        assert read_status(wire) == 403
    managed.give("write", "table:a.t", "alice")
    with holding_back(managed.guarded.server, token) as wire:
        assert managed.manage("DELETE", "principals/alice").status == 204
        wire.sendall(BODY)
        assert read_status(wire) == 401


def test_a_body_that_does_not_come_is_not_waited_for(lake: FreshLake) -> None:
    """408; what came of it changes nothing."""
    with guard(lake, body_timeout_s=0.2) as guarded:
        sent = {"Authorization": f"Bearer {guarded.token('writer')}"}
        before = guarded.get("admin", T).body
        with holding_back(guarded.server, sent) as wire:
            wire.sendall(BODY[:-1])
            assert read_status(wire) == 408
        assert guarded.get("admin", T).body == before

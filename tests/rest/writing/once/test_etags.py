"""The ETag of a write's answer is that of the load that follows: a client that has the answer need not be sent it again."""

from collections.abc import Callable
from typing import Any

import pytest

from duckicelake.rest.routes.tables import MAX_JOINED_BYTES
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.rest.writing.client import Client, creation, data_file, open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after

TABLE = "namespaces/main/tables/t"


def commit_staged(client: Client) -> Answer:
    """Make a table in two steps."""
    staged = client.create("t", **{"stage-create": True}).json["metadata"]
    return client.commit(creation(staged), [{"type": "assert-create"}])


def commit_file(client: Client) -> Answer:
    """Append a file."""
    base = client.create().json["metadata"]
    return client.commit(client.append(base, 9_000_000_001, [data_file(base, "a")]))


def commit_property(client: Client) -> Answer:
    """Set a property."""
    client.create()
    return client.commit([{"action": "set-properties", "updates": {"k": "v"}}])


def commit_long_property(client: Client) -> Answer:
    """Set a property that makes the answer one that is sent in parts."""
    client.create()
    return client.commit([{"action": "set-properties", "updates": {"k": "v" * MAX_JOINED_BYTES}}])


def commit_nothing(client: Client) -> Answer:
    """Change nothing."""
    client.create()
    return client.commit([])


def register(client: Client) -> Answer:
    """Bring a table back."""
    location = client.create().json["metadata-location"]
    assert client.server.ask("DELETE", TABLE).status == 204
    return client.post("namespaces/main/register", {"name": "t", "metadata-location": location})


@pytest.mark.parametrize(
    "write", long_after(1, [Client.create, commit_staged, commit_file, commit_property, commit_long_property, commit_nothing, register])
)
def test_what_a_write_answered_is_not_sent_again(server: Server, lake: FreshLake, write: Callable[[Client], Answer]) -> None:
    """By this server and another one, until somebody changes the table."""
    answer = write(open_client(server, lake))
    assert answer.status == 200
    assert answer.json["metadata"] == server.get(TABLE).json["metadata"]
    known = {"If-None-Match": answer.headers["etag"]}
    with serve(make_settings(lake)) as other:
        for asked in (server, other):
            again: Any = asked.get(TABLE, known)
            assert (again.status, again.body, again.headers["etag"]) == (304, b"", answer.headers["etag"])
        lake.duckdb().execute("INSERT INTO t VALUES (1, 'x')")
        for asked in (server, other):
            assert asked.get(TABLE, known).status == 200

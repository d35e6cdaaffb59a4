"""What a header says of the snapshots in a body, for clients whose procedures cannot say it there."""

import json
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest

from duckicelake.iceberg.requests.bodies import SUMMARY_HEADER, SUMMARY_HEADER_BYTES_MAX
from tests.rest.serving import Answer, Server
from tests.rest.writing.client import Client, data_file, open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after, whole_after

SAID = {"duckicelake.job": "maintain", "duckicelake.run-id": "1é"}
TABLE = {"namespace": ["main"], "name": "t"}
PATHS = [
    pytest.param("namespaces/main/tables/t", lambda change: change, id="table"),
    pytest.param("transactions/commit", lambda change: {"table-changes": [change | {"identifier": TABLE}]}, id="transaction"),
]


@pytest.fixture
def client(server: Server, lake: FreshLake) -> Client:
    """A client of a lake with the table main.t."""
    client = open_client(server, lake)
    assert client.create().status == 200
    return client


def ask(client: Client, path: str, body: Any, headers: Mapping[str, str]) -> Answer:
    """Send JSON with more headers."""
    return client.server.ask("POST", path, {"content-type": "application/json", **headers}, json.dumps(body).encode())


@pytest.mark.parametrize(("path", "wrap"), whole_after(1, PATHS))
def test_every_new_snapshot_has_it(client: Client, path: str, wrap: Any) -> None:
    """Beside its own summary, which counts where both say something; older ones stay as they are."""
    base = client.load()
    assert client.commit(client.append(base, 9_000_000_001, [data_file(base, "a")])).status == 200
    later = client.load()
    updates = client.append(later, 9_000_000_002, [data_file(later, "b")])
    updates[0]["snapshot"]["summary"]["duckicelake.own"] = "mine"
    header = {SUMMARY_HEADER: json.dumps(SAID | {"duckicelake.own": "theirs"})}
    done = ask(client, path, wrap({"requirements": [], "updates": updates}), header)
    assert done.status in (200, 204), done.body
    metadata = client.load()
    [head] = [one for one in metadata["snapshots"] if one["snapshot-id"] == metadata["current-snapshot-id"]]
    [first] = [one for one in metadata["snapshots"] if one["snapshot-id"] == head["parent-snapshot-id"]]
    assert head["summary"].items() >= {**SAID, "duckicelake.own": "mine", "mine": "yes", "operation": "append"}.items()
    assert not any(key.startswith("duckicelake.") for key in first["summary"])


@pytest.mark.parametrize(("path", "wrap"), long_after(1, PATHS))
@pytest.mark.parametrize(
    ("said", "why"),
    long_after(
        1,
        [
            pytest.param("x", "Cannot read header X-DuckIceLake-Summary", id="no JSON"),
            pytest.param("[]", "Cannot read header X-DuckIceLake-Summary", id="no object"),
            pytest.param('{"duckicelake.n": 1}', "send an object of strings", id="number"),
            pytest.param('{"operation": "append"}', "keys begin with 'duckicelake.'", id="other key"),
            pytest.param(
                json.dumps({"duckicelake.n": "x" * SUMMARY_HEADER_BYTES_MAX}),
                f"longer than {SUMMARY_HEADER_BYTES_MAX} bytes",
                id="too long",
            ),
            pytest.param("", "Cannot read header X-DuckIceLake-Summary", id="empty"),
        ],
    ),
)
def test_what_cannot_be_read_is_refused(client: Client, path: str, wrap: Any, said: str, why: str) -> None:
    """Before anything is changed."""
    base = client.load()
    body = wrap({"requirements": [], "updates": client.append(base, 9_000_000_001, [data_file(base, "a")])})
    refused = ask(client, path, body, {SUMMARY_HEADER: said})
    assert (refused.status, refused.json["error"]["type"]) == (400, "BadRequestException")
    assert why in refused.json["error"]["message"]
    assert client.load()["snapshots"] == []


def test_a_key_belongs_to_what_the_header_says_too(client: Client) -> None:
    """The same request is answered again, and one that says something else is another request."""
    base = client.load()
    body = {"requirements": [], "updates": client.append(base, 9_000_000_001, [data_file(base, "a")])}
    headers = {"Idempotency-Key": str(uuid4()), SUMMARY_HEADER: json.dumps(SAID)}
    first, again = (ask(client, "namespaces/main/tables/t", body, headers) for _ in range(2))
    assert (first.status, again.status, first.json) == (200, 200, again.json)
    other = ask(client, "namespaces/main/tables/t", body, headers | {SUMMARY_HEADER: "{}"})
    assert other.status == 422

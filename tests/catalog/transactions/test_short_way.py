"""Commits take a short way past FastAPI; asked the same, FastAPI's own route answers the same."""

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from uuid import uuid4

import pytest
from fastapi.routing import APIRoute

from duckicelake.iceberg.requests.bodies import SUMMARY_HEADER
from duckicelake.rest import application
from tests.rest.serving import Answer, Server, make_settings, serve
from tests.support.lakes import FreshLake

TABLE = "/v1/lake/namespaces/main/tables/t"
SET = json.dumps({"requirements": [], "updates": [{"action": "set-properties", "updates": {"k": "v"}}]}).encode()
FAILS = json.dumps({"requirements": [{"type": "assert-table-uuid", "uuid": str(uuid4())}], "updates": []}).encode()
OTHER = json.dumps({"identifier": {"namespace": ["main"], "name": "other"}, "requirements": [], "updates": []}).encode()
CLIENTS = "writer:secret-of-writer|*,reader:secret-of-reader|ns:main:r,stranger:secret-of-stranger|ns:elsewhere:rw"
PASSING = {"x-request-id", "date"}
KEY = "Idempotency-Key"
AUDITED = ("principal", "operation", "objects", "outcome", "reason")
Both = tuple[str, list[Server], dict[str, str]]

REQUESTS = {
    "done": (TABLE, {}, SET),
    "no table": ("/v1/lake/namespaces/main/tables/none", {}, SET),
    "no namespace": ("/v1/lake/namespaces/none/tables/t", {}, SET),
    "no warehouse": ("/v1/none/namespaces/main/tables/t", {}, SET),
    "empty name": ("/v1/lake/namespaces/main/tables/", {}, SET),
    "broken escape": ("/v1/lake/namespaces/main/tables/%zz", {}, SET),
    "broken prefix": ("/v1/%zz/namespaces/main/tables/t", {}, SET),
    "no UTF-8": ("/v1/lake/namespaces/%ff/tables/t", {}, SET),
    "control character": ("/v1/lake/namespaces/main/tables/a%0Ab", {}, SET),
    "slash in a name": ("/v1/lake/namespaces/main/tables/a%2Fb", {}, SET),
    "plus in a name": ("/v1/lake/namespaces/main/tables/a+b", {}, SET),
    "query of no UTF-8": (f"{TABLE}?a=%ff", {}, SET),
    "query": (f"{TABLE}?a=b", {}, SET),
    "no JSON": (TABLE, {}, b"{"),
    "no body": (TABLE, {}, b""),
    "another table": (TABLE, {}, OTHER),
    "requirement fails": (TABLE, {}, FAILS),
    "key": (TABLE, {KEY: "018f3a1e-0000-7000-8000-00000000000"}, SET),
    "key once more": (TABLE, {KEY: "018f3a1e-0000-7000-8000-00000000000"}, SET),
    "key of another": (TABLE, {KEY: "018f3a1e-0000-7000-8000-00000000000"}, FAILS),
    "no key": (TABLE, {KEY: "x"}, SET),
    "empty key": (TABLE, {KEY: ""}, SET),
    "summary": (TABLE, {SUMMARY_HEADER: '{"duckicelake.job": "x"}'}, SET),
    "no summary": (TABLE, {SUMMARY_HEADER: "x"}, SET),
    "bad token": (TABLE, {"Authorization": "Bearer x"}, SET),
}


STATUSES = {
    "": {200, 400, 404, 409, 422},
    "writer": {200, 400, 401, 404, 409, 422},
    "reader": {400, 401, 403, 404},
    "stranger": {400, 401, 404},
}
"""What each of them is answered, all requests taken together; nobody: where nobody has to say who they are."""
PRINCIPALS = [
    pytest.param(name, id=name or "nobody", marks=[pytest.mark.long] if name in ("writer", "stranger") else []) for name in STATUSES
]


@pytest.fixture(params=PRINCIPALS)
def both(request: pytest.FixtureRequest, lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Both]:
    """Two servers on one lake, the second without the short way, and what its requests carry."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS id")
    guard = {"require_auth": True, "oauth_clients": CLIENTS, "token_keys": "k" * 32} if request.param else {}
    with ExitStack() as opened:
        servers = [opened.enter_context(serve(make_settings(lake, **guard)))]
        monkeypatch.setattr(application, "CommitFastPath", lambda app, *_: app)
        servers.append(opened.enter_context(serve(make_settings(lake, **guard))))
        headers: dict[str, str] = {}
        if guard:
            form = f"grant_type=client_credentials&client_id={request.param}&client_secret=secret-of-{request.param}".encode()
            told = servers[0].ask("POST", "/v1/oauth/tokens", {"Content-Type": "application/x-www-form-urlencoded"}, form)
            headers["Authorization"] = f"Bearer {told.json['access_token']}"
        yield request.param, servers, headers


def without_passing(answer: Answer) -> tuple[int, Mapping[str, str], object]:
    """Return an answer without what is another one's every time: its id, and what a commit makes."""
    headers = {name: value for name, value in answer.headers.items() if name not in PASSING}
    if answer.status != 200:
        return answer.status, headers, answer.body
    return answer.status, dict.fromkeys(headers, ""), sorted(answer.json["metadata"])


def test_all_answers_are_those_of_fastapi(both: Both, lake: FreshLake, caplog: pytest.LogCaptureFixture) -> None:
    """Statuses, headers, texts, counters and the record."""
    principal, servers, mine = both
    caplog.set_level(logging.INFO, "duckicelake.audit")
    told: list[list[object]] = []
    answers: list[list[tuple[str, tuple[int, Mapping[str, str], object]]]] = []
    counted: list[list[str]] = []
    for number, server in enumerate(servers):
        found: list[tuple[str, tuple[int, Mapping[str, str], object]]] = []
        for name, (path, headers, body) in REQUESTS.items():
            # each server has a key of its own, used as often
            key = {KEY: f"{headers[KEY]}{number}" if headers[KEY] else ""} if KEY in headers else headers
            status, kept, said = without_passing(server.ask("POST", path, mine | key, body.replace(b'"v"', b'"v%d"' % number)))
            found.append((name, (status, kept, said.replace(key.get(KEY, "").encode(), b"") if isinstance(said, bytes) else said)))
        answers.append(found)
        told.append([[record.__dict__["audit"][name] for name in AUDITED] for record in caplog.records if "audit" in record.__dict__])
        caplog.clear()
        lines = server.get("/metrics").body.decode().splitlines()
        counted.append([line for line in lines if line.startswith("duckicelake_requests_total") and "updateTable" in line])
    assert answers[0] == answers[1]
    assert counted[0] == counted[1] != []
    assert told[0] == told[1] != []
    rows = lake.psycopg().execute("SELECT principal, operation, objects, outcome, reason FROM iceberg_audit ORDER BY id").fetchall()
    done = [row for row in rows if row[3] == "done"]
    assert done[: len(done) // 2] == done[len(done) // 2 :]
    assert bool(done) == (200 in STATUSES[principal])
    statuses = {status for _, (status, *_) in answers[0]}
    assert statuses == STATUSES[principal]


def test_the_short_way_is_taken(lake: FreshLake, monkeypatch: pytest.MonkeyPatch) -> None:
    """FastAPI's routes do not come to see a commit of one table."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS id")
    seen: list[str] = []
    handle = APIRoute.handle

    async def watched(route: APIRoute, *args: Any) -> None:
        seen.append(route.path)
        await handle(route, *args)

    monkeypatch.setattr(APIRoute, "handle", watched)
    with serve(make_settings(lake)) as server:
        assert server.ask("POST", TABLE, {}, SET).status == 200
        assert server.get("namespaces/main").status == 200
    assert seen == ["/v1/{prefix}/namespaces/{namespace}"]

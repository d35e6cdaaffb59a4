"""Metrics reports of clients: kept for each table, the newest ones, and summed up over REST and by the command line."""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote

import pytest

from duckicelake.catalog.audit_log import AuditLog
from duckicelake.catalog.records.client_reports import MAX_WAITING, ReportQueue
from duckicelake.lake.audit_log import read_reports
from duckicelake.lake.connect import close_lake, open_lake
from duckicelake.rest.params import encode_page_token
from tests.cli.test_branches import ask
from tests.cli.test_commands import settings_for
from tests.iceberg.requests.test_reports import SCAN
from tests.rest.serving import Server, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.waiting import wait_for

COMMIT = {
    "report-type": "commit-report",
    "table-name": "lake.main.t",
    "snapshot-id": 1,
    "sequence-number": 1,
    "operation": "append",
    "metrics": {
        "total-duration": {"count": 1, "time-unit": "nanoseconds", "total-duration": 3_000_000},
        "attempts": {"unit": "count", "value": 1},
        "added-records": {"unit": "count", "value": 24},
    },
}
REPORTS = "/management/v1/lake/namespaces/main/tables/t/reports"


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Write reports as soon as the thread looks."""
    monkeypatch.setattr("duckicelake.catalog.audit_log.READS_EVERY_S", 0.0)
    monkeypatch.setattr("duckicelake.catalog.audit_log.PAUSE_S", 0.05)


def send(server: Server, *reports: Mapping[str, Any], table: str = "t") -> None:
    """Send reports as clients do."""
    path, headers = f"namespaces/main/tables/{table}/metrics", {"Content-Type": "application/json"}
    for report in reports:
        answer = server.ask("POST", path, headers, json.dumps(report).encode())
        assert answer.status == 204, answer.body


def wait_for_reports(server: Server, count: int) -> Sequence[Mapping[str, Any]]:
    """Wait until so many reports are listed."""
    wait_for(lambda: len(server.get(f"{REPORTS}?pageSize=1000").json["reports"]) == count, f"{count} reports")
    return server.get(f"{REPORTS}?pageSize=1000").json["reports"]


def test_reports_are_kept_for_each_table(lake: FreshLake) -> None:
    """Scans, filters, bytes and commits; a renamed table keeps its reports; one that is made by the commit has none yet."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(20); CREATE TABLE other AS SELECT 1 AS i")
    with serve(make_settings(lake)) as server:
        send(server, SCAN, SCAN, {**SCAN, "filter": True}, COMMIT, {"report-type": "invented"})
        send(server, SCAN, table="other")
        send(server, COMMIT, table="new")
        found = wait_for_reports(server, 4)
        assert [report["report-type"] for report in found] == ["commit-report", "scan-report", "scan-report", "scan-report"]
        assert (found[0]["principal"], found[0]["metrics"]["added-records"]) == (None, 24)
        summary = server.get(f"{REPORTS}?pageSize=1").json
        assert summary["reports"] == found[:1]
        assert summary["summary"]["scans"] | {"first-at": None, "last-at": None} == {
            "count": 3,
            "first-at": None,
            "last-at": None,
            "total-file-size-in-bytes": 135,
            "result-data-files": 3,
            "result-delete-files": 0,
            "skipped-data-files": 0,
            "total-planning-ms": 7932,
        }
        assert summary["summary"]["filters"] == [{"filter": found[2]["filter"], "count": 2}, {"filter": "true", "count": 1}]
        assert summary["summary"]["fields"] == [{"name": "id", "count": 3}]
        commits = summary["summary"]["commits"]
        assert (commits["count"], commits["operations"], commits["added-records"], commits["total-ms"]) == (1, {"append": 1}, 24, 3)
        lake.duckdb().execute("ALTER TABLE t RENAME TO u")
        assert len(server.get(REPORTS.replace("/t/", "/u/")).json["reports"]) == 4
        assert server.get(REPORTS).error == (404, "NoSuchTableException")
        settings = settings_for(lake)
        lines = ask(settings, "reports", "list", "main.u", "--most", "2").splitlines()
        assert [json.loads(line) for line in lines] == list(found[:2])
        assert json.loads(ask(settings, "reports", "summary", "main.U")) == summary["summary"]


def test_reports_come_in_pages(lake: FreshLake) -> None:
    """The newest first, each once, also while others arrive; the sums come with the first page and are those of all."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS i")
    with serve(make_settings(lake)) as server:
        assert server.get(REPORTS).json["reports"] == []
        assert server.get(REPORTS).json["summary"]["commits"]["first-at"] is None
        send(server, *({**SCAN, "snapshot-id": number, "filter": number % 2 == 0} for number in range(5)))
        wait_for_reports(server, 5)
        first = server.get(f"{REPORTS}?pageSize=2").json
        send(server, {**SCAN, "snapshot-id": 5})
        wait_for_reports(server, 6)
        second = server.get(f"{REPORTS}?pageSize=2&pageToken={first['next-page-token']}").json
        third = server.get(f"{REPORTS}?pageSize=2&pageToken={second['next-page-token']}").json
        pages = [[report["snapshot-id"] for report in page["reports"]] for page in (first, second, third)]
        assert pages == [[4, 3], [2, 1], [0]]
        assert third["next-page-token"] is None
        assert first["summary"]["scans"]["count"] == 5
        assert first["summary"]["filters"] == [{"filter": "true", "count": 3}, {"filter": "false", "count": 2}]
        assert (second["summary"], third["summary"]) == (None, None)
        for wrong in ("pageToken=x", "pageSize=0", "pageSize=1001", f"pageToken={quote(encode_page_token(('1', '2')))}"):
            assert server.get(f"{REPORTS}?{wrong}").error == (400, "BadRequestException")


def list_snapshots(server: Server) -> Sequence[int]:
    """The snapshots that the reports are about, the newest report first."""
    return [report["snapshot-id"] for report in server.get(REPORTS).json["reports"]]


def test_the_newest_reports_stay(lake: FreshLake) -> None:
    """The oldest go when newer ones are written; with 0 none is kept."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT 1 AS i")
    with serve(make_settings(lake, client_reports_max=3)) as server:
        for number in range(6):
            send(server, {**SCAN, "snapshot-id": number})
            wait_for(lambda number=number: number in list_snapshots(server), "the report")
        assert list_snapshots(server) == [5, 4, 3, 2]
    with serve(make_settings(lake, client_reports_max=0)) as server:
        send(server, {**SCAN, "snapshot-id": 7})
    assert lake.psycopg().execute("SELECT count(*) FROM iceberg_report WHERE report->>'snapshot-id' = '7'").fetchone() == (0,)


def test_too_many_reports_are_counted_as_missing() -> None:
    """The memory of those that wait is bounded."""
    queue = ReportQueue(10)
    for _ in range(MAX_WAITING + 5):
        queue.add(1, None, SCAN)
    assert (len(queue.take(MAX_WAITING * 2)), queue.dropped_count) == (MAX_WAITING, 5)


def test_reports_that_postgres_refuses_are_counted_as_missing(lake: FreshLake) -> None:
    """What comes after is written, also while the server stops; old ones go."""
    opened, conn = open_lake("lake", lake.dsn, lake.metadata_schema, 2), lake.psycopg()
    conn.execute("INSERT INTO iceberg_report (table_id, received_at, report) VALUES (1, now() - interval '2 days', '{}')")
    conn.execute("ALTER TABLE iceberg_report RENAME TO iceberg_gone")
    log = AuditLog(opened, 1, reports=ReportQueue(10))
    log.reports.add(1, None, SCAN)
    log.start()
    wait_for(lambda: log.reports.dropped_count == 1, "the report to be refused")
    conn.execute("ALTER TABLE iceberg_gone RENAME TO iceberg_report")
    log.reports.add(1, "alice", COMMIT)
    log.stop()
    assert [report.principal for _, report in read_reports(conn, 1, 99, 10)] == ["alice", None]
    log = AuditLog(opened, 1, first_s=0)
    log.start()
    wait_for(lambda: [report.principal for _, report in read_reports(conn, 1, 99, 10)] == ["alice"], "the old report to go")
    log.stop()
    close_lake(opened)

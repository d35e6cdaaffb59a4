"""The webhook: events arrive signed, each at least once and in order, whatever the receiver does and wherever the server is killed."""

import multiprocessing
import os
import signal
import socket
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from threading import Event as Signal
from threading import Thread
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from duckicelake.catalog.events import Sent, Webhook, compute_pause
from duckicelake.config import SettingsError, read_settings
from duckicelake.errors import BadRequest
from duckicelake.gateway.webhook import WebhookSender, decode_secret
from duckicelake.lake.connect import Lake, LakeConnection, writing_on_new_connection
from duckicelake.lake.install import install
from tests.rest.events.receiver import SECRET, Post, Receiver, receiving
from tests.rest.events.test_events import read_all, summarise
from tests.rest.serving import make_settings, serve
from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after, whole_but

STEPS = ("before POST", "after POST", "before COMMIT", "after COMMIT")


@pytest.fixture
def receiver() -> Generator[Receiver]:
    """A receiver that takes everything."""
    with receiving() as found:
        yield found


@dataclass(frozen=True, slots=True)
class Sender:
    """What sends the events of a lake, turn by turn, and its connection."""

    webhook: Webhook
    conn: psycopg.Connection

    def send_all(self) -> None:
        """Send until there is nothing left."""
        while self.webhook.send_next(self.conn) is not Sent.NOTHING:
            pass


def open_webhook(lake: FreshLake, url: str, batch_max: int = 100, timeout_s: float = 20.0) -> Webhook:
    """A webhook of a lake."""
    sender = WebhookSender(url, decode_secret(SECRET), timeout_s, is_batched=batch_max > 1)
    return Webhook(to_lake(lake), sender.send, batch_max)


def to_lake(lake: FreshLake) -> Lake:
    """The lake as the server knows it, with its own tables."""
    install(lake.psycopg(), lake.metadata_schema, lake.iceberg_path)
    return Lake("lake", lake.metadata_schema, lake.dsn, ConnectionPool(lake.dsn, connection_class=LakeConnection, open=False))


@pytest.fixture
def sender(lake: FreshLake, receiver: Receiver) -> Generator[Sender]:
    """A sender whose cursor is at the oldest event."""
    webhook = open_webhook(lake, receiver.url)
    put_cursor(lake, "-1")
    with writing_on_new_connection(webhook.lake) as conn:
        yield Sender(webhook, conn)


def put_cursor(lake: FreshLake, cursor: str) -> None:
    """Let the receiver have acknowledged all up to a cursor."""
    lake.psycopg().execute(
        "INSERT INTO iceberg_setting VALUES ('events_webhook_cursor', %s) ON CONFLICT (key) DO UPDATE SET value = excluded.value", (cursor,)
    )


def make_history(lake: FreshLake, count: int) -> None:
    """Let so many lake snapshots change three tables in turn, as DuckDB's commits leave them."""
    with closing(lake.duckdb()) as session:
        for name in ("a", "b", "c"):
            session.execute(f"CREATE TABLE {name} (i INTEGER)")
    conn = lake.psycopg()
    conn.execute(
        "INSERT INTO ducklake_snapshot SELECT n, now(), s.schema_version, s.next_catalog_id, s.next_file_id"
        " FROM ducklake_snapshot s, generate_series(4, %s) n WHERE s.snapshot_id = 3",
        (count + 3,),
    )
    conn.execute(
        "INSERT INTO ducklake_snapshot_changes (snapshot_id, changes_made)"
        " SELECT n, 'inserted_into_table:' || 1 + n %% 3 FROM generate_series(4, %s) n",
        (count + 3,),
    )


def check_order(events: Sequence[Mapping[str, Any]], count: int) -> None:
    """None is missing, and of each table the first copy of each comes in order."""
    first = {event["id"]: event for event in reversed(events)}
    assert len(first) == count
    seen: dict[str, list[int]] = {}
    for event in dict.fromkeys(event["id"] for event in events):
        seen.setdefault(first[event]["subject"], []).append(first[event]["data"]["lake-snapshot-id"])
    assert all(ids == sorted(ids) for ids in seen.values())


@pytest.mark.parametrize("batch_max", whole_after(1, [100, 1]))
def test_a_server_sends_what_happens_from_its_start_on(lake: FreshLake, receiver: Receiver, batch_max: int) -> None:
    """Signed, in the content mode of the batch size, and the same events as the cursor API has; metrics count them."""
    with closing(lake.duckdb()) as session:
        session.execute("CREATE TABLE early (i INTEGER)")
    webhook = {"url": receiver.url + "hook?x=1", "secret": SECRET, "batch_max": batch_max}
    settings = make_settings(lake, events={"webhook": webhook})
    with serve(settings) as server:
        client = open_client(server, lake)
        wait_for_cursor(lake)
        client.create("t")
        with closing(lake.duckdb()) as session:
            session.execute("INSERT INTO t VALUES (1, 'x')")
        found = receiver.take(2)
        events = read_all(server)
        assert list(found) == list(events[-2:])
        assert summarise(found) == [("table.created", "main.t"), ("table.changed", "main.t")]
        metrics = server.ask("GET", "/metrics").body.decode()
        assert 'duckicelake_webhook_lag{warehouse="lake"}' in metrics
    post = receiver.posts[0]
    assert post.is_signed and post.path == "/hook?x=1"
    kind = "application/cloudevents-batch+json" if batch_max > 1 else "application/cloudevents+json"
    assert post.headers["content-type"] == f"{kind}; charset=utf-8"
    with closing(lake.duckdb()) as session:
        session.execute("DROP TABLE t")
    with serve(settings):
        assert summarise(receiver.take(3)[2:]) == [("table.dropped", "main.t")]


def wait_for_cursor(lake: FreshLake) -> None:
    """Wait until the server has begun to send."""
    conn = lake.psycopg()
    while conn.execute("SELECT FROM iceberg_setting WHERE key = 'events_webhook_cursor'").fetchone() is None:
        pass


@pytest.mark.parametrize("count", whole_but([300, 10_000], 300))
def test_a_receiver_that_was_away_misses_nothing(lake: FreshLake, sender: Sender, receiver: Receiver, count: int) -> None:
    """It refuses, fails and redirects for a while; then everything comes, in order, and nothing twice."""
    make_history(lake, count)
    for status in (500, 503, 302, 400, 410):
        receiver.answer = lambda _, status=status: status
        assert sender.webhook.send_next(sender.conn) is Sent.REFUSED
    assert receiver.acknowledged == [] and sender.webhook.failure_count == 5
    assert [post.path for post in receiver.posts] == ["/"] * 5
    assert len({post.headers["webhook-id"] for post in receiver.posts}) == 1
    receiver.answer = lambda _: 200
    sender.send_all()
    assert len(receiver.acknowledged) == count + 4
    check_order(receiver.acknowledged, count + 4)
    assert sender.webhook.send_next(sender.conn) is Sent.NOTHING and sender.webhook.lag == 0


def run_until_killed(lake: FreshLake, url: str, step: str, turn: int) -> None:
    """Send events, and end as by kill -9 at a step of a turn."""
    webhook = open_webhook(lake, url, 10)
    turns, real = [0], webhook.send

    def kill_at(name: str) -> None:
        if name == step and turns[0] == turn:
            os.kill(os.getpid(), signal.SIGKILL)

    def send(events: Sequence[Mapping[str, Any]]) -> str | None:
        turns[0] += 1
        kill_at("before POST")
        refusal = real(events)
        kill_at("after POST")
        return refusal

    webhook.send = send
    with writing_on_new_connection(webhook.lake) as conn:
        commit = conn.commit

        def watched_commit() -> None:
            kill_at("before COMMIT")
            commit()
            kill_at("after COMMIT")

        conn.commit = watched_commit  # pyright: ignore[reportAttributeAccessIssue]
        while webhook.send_next(conn) is not Sent.NOTHING:
            pass


def test_lake_snapshots_without_events_do_not_make_the_receiver_wait(lake: FreshLake, sender: Sender, receiver: Receiver) -> None:
    """The sender goes on at once until it has read the newest one."""
    make_history(lake, 5)
    lake.psycopg().execute("UPDATE ducklake_snapshot_changes SET changes_made = NULL WHERE snapshot_id > 3")
    put_cursor(lake, "3")
    sender.webhook.batch_max = 2
    assert [sender.webhook.send_next(sender.conn) for _ in range(4)] == [Sent.MORE, Sent.MORE, Sent.NOTHING, Sent.NOTHING]
    assert receiver.posts == []


@pytest.mark.parametrize("step", STEPS)
def test_a_sender_that_is_killed_sends_again_what_was_not_noted(lake: FreshLake, sender: Sender, receiver: Receiver, step: str) -> None:
    """Nothing is missing; what was acknowledged and not noted comes twice."""
    make_history(lake, 35)
    context = multiprocessing.get_context("fork")
    for turn in (1, 2):
        process = context.Process(target=run_until_killed, args=(lake, receiver.url, step, turn))
        process.start()
        process.join()
        assert process.exitcode == -signal.SIGKILL
    sender.send_all()
    check_order(receiver.acknowledged, 39)
    repeated = len(receiver.acknowledged) - 39
    assert repeated == (20 if step in ("after POST", "before COMMIT") else 0)


def test_only_one_of_two_servers_sends(lake: FreshLake, sender: Sender, receiver: Receiver) -> None:
    """While a request is under way, the other server finds the webhook locked, and does not wait."""
    make_history(lake, 10)
    came, go = Signal(), Signal()

    def hold(_: Post) -> int:
        came.set()
        go.wait(60)
        return 200

    receiver.answer = hold
    sending = Thread(target=sender.webhook.send_next, args=(sender.conn,))
    sending.start()
    assert came.wait(60)
    other = open_webhook(lake, receiver.url)
    with writing_on_new_connection(other.lake) as conn:
        assert other.send_next(conn) is Sent.ELSEWHERE
        go.set()
        sending.join()
        assert other.send_next(conn) is Sent.NOTHING
    assert len(receiver.acknowledged) == 14


@pytest.mark.parametrize("cursor", ["0", "1000000", "3.7"], ids=["deleted", "restored", "numbered otherwise"])
def test_a_gap_is_told_to_the_receiver(lake: FreshLake, sender: Sender, receiver: Receiver, cursor: str) -> None:
    """Events were deleted before they were sent, or Postgres was restored; then sending goes on."""
    make_history(lake, 5)
    if cursor == "0":
        lake.psycopg().execute("INSERT INTO iceberg_setting VALUES ('events_pruned_to', '3')")
    put_cursor(lake, cursor)
    sender.send_all()
    lost, *rest = receiver.acknowledged
    assert (lost["type"], lost["data"]["until"]) == ("duckicelake.events.lost", 8 if cursor == "1000000" else 3)
    assert len(rest) == (0 if cursor == "1000000" else 5)


def test_a_receiver_that_drips_does_not_hold_the_sender(lake: FreshLake, sender: Sender) -> None:
    """The timeout is that of the whole request."""
    make_history(lake, 2)
    stop = Signal()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def drip() -> None:
            wire, _ = listener.accept()
            with wire:
                wire.recv(65536)
                wire.sendall(b"HTTP/1.1 200 OK\r\n")
                while not stop.wait(0.05):
                    try:
                        wire.sendall(b"x")
                    except OSError:
                        return

        dripping = Thread(target=drip)
        dripping.start()
        webhook = open_webhook(lake, f"http://127.0.0.1:{listener.getsockname()[1]}/", timeout_s=0.5)
        assert webhook.send_next(sender.conn) is Sent.REFUSED
        stop.set()
        dripping.join()


def test_a_receiver_without_a_trusted_certificate_gets_nothing(lake: FreshLake, sender: Sender, receiver: Receiver) -> None:
    """And neither does one that speaks no TLS."""
    make_history(lake, 2)
    webhook = open_webhook(lake, receiver.url.replace("http:", "https:"))
    assert webhook.send_next(sender.conn) is Sent.REFUSED
    assert receiver.acknowledged == []


def test_pauses_grow_to_a_minute() -> None:
    """And two servers do not come at once."""
    assert compute_pause(0) == 1.0
    assert 0.5 <= compute_pause(1) <= 1.0
    assert 30 <= compute_pause(7) <= compute_pause(10_000) * 2 <= 120


def test_the_secret_is_shown_nowhere() -> None:
    """Not in what a debugger or a log prints of the sender."""
    assert "0123456789abcdef" not in repr(WebhookSender("http://127.0.0.1/", decode_secret(SECRET), 1.0))


@pytest.mark.parametrize("secret", ["", "short", "whsec_AAAA", "whsec_%%%%", "whsec_\u00e9"])
def test_weak_and_broken_secrets_are_refused(secret: str) -> None:
    """Without showing them."""
    with pytest.raises(BadRequest, match=r"events\.webhook"):
        decode_secret(secret)


@pytest.mark.parametrize(
    "webhook",
    [
        pytest.param({"url": "http://receiver.example/", "secret": SECRET}, id="plain HTTP"),
        pytest.param({"url": "https://user@receiver.example/", "secret": SECRET}, id="user in the URL"),
        pytest.param({"url": "https://receiver.example/"}, id="no secret"),
        pytest.param({"url": "https://receiver.example/", "secret": SECRET, "secret_file": "/x"}, id="two secrets"),
        pytest.param({"url": "ftp://receiver.example/", "secret": SECRET}, id="no HTTP"),
        pytest.param({"url": "https://receiver.example/", "secret": SECRET, "batch_max": 0}, id="no batch"),
        pytest.param({"url": "https://receiver.example/", "secret": SECRET, "retries": 3}, id="unknown"),
    ],
)
def test_odd_settings_stop_the_start(webhook: Mapping[str, Any]) -> None:
    """With a message that names the setting and no secret."""
    with pytest.raises(SettingsError) as refused:
        read_settings({"events": {"webhook": webhook}})
    assert "events" in refused.value.message and SECRET not in refused.value.message

"""A server that is killed (-9) at any effect of a group of property commits: all of the group has landed or nothing of it."""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPException

import pytest

from tests.crashes.asked import Asked, table_path, to_body
from tests.crashes.process import Running, running
from tests.crashes.story import BEYOND, NOWHERE, break_off, send
from tests.rest.serving import Answer, make_settings, serve
from tests.rest.writing.client import Client, open_client
from tests.rest.writing.queueing import check_published, count_audited, locked, read_head, set_property, wait_for_queue
from tests.support.lakes import FreshLake
from tests.support.waiting import count_waiting, wait_for

KEYS = ("a", "b", "c")
AFTER_COMMIT = "after COMMIT"


def ask_to_set(table: str, key: str) -> Asked:
    """The request that sets a property."""
    return Asked("POST", table_path(table), to_body([set_property(key)]), {}, {})


def try_to_set(client: Client, table: str, key: str) -> Answer | None:
    """The answer to such a request, None if the server does not live to give it."""
    try:
        return send(client.server, ask_to_set(table, key), {})
    except (OSError, HTTPException):
        return None


def list_group_effects(lake: FreshLake, standing: Client) -> list[str]:
    """The effects of a commit and of a group behind it, until the last member of the group is answered."""
    assert standing.create("whole").status == 200
    with running(make_settings(lake)) as fresh, ThreadPoolExecutor(8) as pool:
        with locked(lake):
            sent, last = submit_group(lake, fresh, pool, "whole", NOWHERE)
        assert all(answer is not None and answer.status == 200 for answer in (each.result() for each in sent))
        _, answer = last.result()
    assert answer is not None
    return json.loads(answer.headers["x-effects"])


def submit_group(
    lake: FreshLake, doomed: Running, pool: ThreadPoolExecutor, table: str, effect: int
) -> tuple[list[Future[Answer | None]], Future[tuple[str, Answer | None]]]:
    """Let a commit wait for the lake and the members of a group for their turn; the last one kills the server at an effect."""
    client = open_client(doomed.server, lake)
    first = pool.submit(try_to_set, client, table, "begun")
    wait_for(lambda: count_waiting(lake.psycopg(), "ducklake_snapshot") == 1, "a commit that waits for the lake")
    sent: list[Future[Answer | None]] = []
    for number, key in enumerate(KEYS[:-1], 1):
        sent.append(pool.submit(try_to_set, client, table, key))
        wait_for_queue(client, number)
    last = pool.submit(break_off, doomed.server, ask_to_set(table, KEYS[-1]), effect, doomed.kill)
    wait_for_queue(client, len(KEYS))
    return [first, *sent], last


def kill_at(lake: FreshLake, standing: Client, effect: int) -> str:
    """Kill a server at an effect, look through another one what has landed, and do all again there."""
    table, head, audited = f"t{effect}", read_head(lake), count_audited(lake)
    assert standing.create(table).status == 200
    with running(make_settings(lake)) as doomed, ThreadPoolExecutor(8) as pool:
        with locked(lake):
            sent, last = submit_group(lake, doomed, pool, table, effect)
        answers = [each.result() for each in sent]
        name, answer = last.result()
    properties = check_published(standing, lake, table)
    landed = {key for key in KEYS if key in properties}
    assert landed in (set(), set(KEYS)), f"killed before {effect} ({name}), and only {landed} landed"
    has_begun = "begun" in properties
    assert read_head(lake) == head + 1 + has_begun + bool(landed), name
    assert count_audited(lake) == audited + has_begun + len(landed), name
    for key, given in zip(("begun", *KEYS), (*answers, answer), strict=True):
        assert given is None or (given.status == 200 and key in properties), f"{key} was acknowledged before {effect} ({name})"
    for key in KEYS:
        assert standing.commit([set_property(key, "again")], (), table).status == 200
    properties = check_published(standing, lake, table)
    assert [properties[key] for key in KEYS] == ["again"] * len(KEYS)
    return name


@pytest.mark.whole
def test_a_group_that_is_broken_off_has_landed_or_not(lake: FreshLake) -> None:
    """At COMMIT, before and after it, at the first object that is written then, and at the answer."""
    with serve(make_settings(lake)) as server:
        standing = open_client(server, lake)
        effects = list_group_effects(lake, standing)
        committed = len(effects) - 1 - effects[::-1].index(AFTER_COMMIT)
        assert effects.count(AFTER_COMMIT) == 2, effects
        for effect in (committed - 1, committed, committed + 1, len(effects) - 1):
            assert kill_at(lake, standing, effect) == effects[effect]


@pytest.mark.long
def test_a_group_may_be_broken_off_at_every_effect(lake: FreshLake) -> None:
    """Those of the commit before it are among them."""
    with serve(make_settings(lake)) as server:
        standing = open_client(server, lake)
        effects = list_group_effects(lake, standing)
        assert [kill_at(lake, standing, effect) for effect in range(len(effects))] == effects
        assert BEYOND not in effects

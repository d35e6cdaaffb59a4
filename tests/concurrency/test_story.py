"""DuckDB writes and tidies up while others read through two servers."""

import re

import pytest

from tests.concurrency.ledger import Change, Commit, Ledger
from tests.concurrency.readers import NAMES, count_rows
from tests.concurrency.story import check_seen, gather_cast
from tests.rest.serving import Server, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.readers import DuckLakeReader

SEED = 20261121


@pytest.mark.whole
@pytest.mark.parametrize("seconds", [pytest.param(8, id="short"), pytest.param(60, id="a minute", marks=pytest.mark.long)])
def test_nobody_sees_a_torn_or_mixed_state(lake: FreshLake, seconds: int) -> None:
    """Each answer is the state after some commit, none older than what was acknowledged before it was asked for."""
    with serve(make_settings(lake)) as first, serve(make_settings(lake)) as second:
        cast = gather_cast(lake, (first, second), SEED)
        cast.play(seconds)
        for server in (first, second):
            assert list_statuses(server) <= {"200", "304"}
    told = cast.tell()
    check_seen(cast)
    truth = DuckLakeReader(lake.duckdb())
    for name in NAMES:
        newest = cast.ledger.get_newest(name)
        expected = cast.ledger.list_states(name, [newest])[newest]
        assert count_rows(truth.read(("main", name))) == expected, f"DuckDB itself: {name}; {told}"


def list_statuses(server: Server) -> set[str]:
    """The statuses of all answers so far, as the server counts them."""
    return set(re.findall(r'^duckicelake_requests_total\{.*status="(\d+)"', server.get("/metrics").body.decode(), re.MULTILINE))


def test_the_ledger_finds_a_lost_write() -> None:
    """The check of the check: taking away what is not there, and states between commits."""
    ledger = Ledger()
    for snapshot_id, change in ((3, Change(added=((1, 1),))), (5, Change(removed=((1, 1),), added=((1, 2),)))):
        ledger.acknowledge(Commit(snapshot_id, {"t": change}))
    assert ledger.get_newest("t") == 5
    assert {at: list(rows) for at, rows in ledger.list_states("t", [2, 3, 4, 5, 9]).items()} == {
        2: [],
        3: [(1, 1)],
        4: [(1, 1)],
        5: [(1, 2)],
        9: [(1, 2)],
    }
    ledger.acknowledge(Commit(6, {"t": Change(removed=((1, 1),))}))
    with pytest.raises(AssertionError, match="lost"):
        ledger.list_states("t", [6])

"""A lake and its branches: whatever is done to one member, every reader of every member shows exactly the rows of the model."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, seed

from tests.differential.clients.draws.pyiceberg import PYICEBERG
from tests.differential.generation import history_settings
from tests.differential.members.clients import DuckDBClient, DucklakepyClient
from tests.differential.members.histories import RepositoryHistory, repository_histories
from tests.differential.members.merging import Counts, Event, draw_events, prove_merges
from tests.differential.members.playing import prove_repository
from tests.differential.sessions import Sessions
from tests.fix_histories import Block
from tests.rest.serving import make_settings, serve
from tests.support.ducklake_1_1 import LOCAL, make_nesting_lake
from tests.support.lakes import make_lake
from tests.support.tiers import long_but

SHARES = [Block(1, 2), *(Block(seed, 10) for seed in range(2, 32))]
"""Histories of one seed each: a handful, and 300."""

EACH_SHARE = pytest.mark.parametrize(
    "share", long_but([pytest.param(share, id=f"seed{share.seed}x{share.count}") for share in SHARES], "seed1x2")
)

MERGES = [Block(3, 3), *(Block(seed, 10) for seed in range(32, 62))]
EACH_SHARE_OF_MERGES = pytest.mark.parametrize(
    "share", long_but([pytest.param(share, id=f"seed{share.seed}x{share.count}") for share in MERGES], "seed3x3")
)


def prove_share(share: Block, sessions: Sessions, *clients: str) -> None:
    """Prove some histories; a failing one shrinks, and is printed."""

    @seed(share.seed)
    @history_settings(share.count, shrink=True)
    @given(repository_histories(clients=clients))
    def every_member_agrees(history: RepositoryHistory) -> None:
        with make_lake(sessions.stack) as lake, serve(make_settings(lake)) as server:
            prove_repository(lake, server, history, sessions)

    every_member_agrees()


@pytest.mark.whole
@EACH_SHARE
def test_every_member_agrees_at_every_snapshot(share: Block, sessions: Sessions) -> None:
    """DuckDB writes to a lake and its branches: they change apart from each other, whatever maintenance removes."""
    prove_share(share, sessions)


@pytest.mark.long
@EACH_SHARE
def test_every_member_agrees_when_pyiceberg_writes_too(share: Block, sessions: Sessions) -> None:
    """The same, while PyIceberg commits to each member between DuckDB's steps."""
    prove_share(share, sessions, PYICEBERG)


@EACH_SHARE_OF_MERGES
def test_operations_on_branches_make_the_rows_that_they_should(share: Block, sessions: Sessions) -> None:
    """Merges both ways, resets, reverts, tags and deletions between changes: DuckDB and PyIceberg show the rows at every snapshot."""
    counts = Counts()

    @seed(share.seed)
    @history_settings(share.count, shrink=True)
    @given(draw_events())
    def every_operation_is_right(events: list[Event]) -> None:
        with make_lake(sessions.stack) as lake, serve(make_settings(lake)) as server:
            prove_merges(lake, server, events, DuckDBClient(sessions), counts)

    every_operation_is_right()
    assert counts.done["merge"], counts


MERGES_1_1 = [Block(62, 2), *(Block(seed, 10) for seed in range(63, 93))]
EACH_SHARE_OF_1_1 = pytest.mark.parametrize(
    "share", long_but([pytest.param(share, id=f"seed{share.seed}x{share.count}") for share in MERGES_1_1], "seed62x2")
)
LAKE, BRANCH, CHILD = 0, 1, 2
STORY = [
    *(Event("append", LAKE, 0), Event("append", BRANCH, 0), Event("insert", BRANCH, 0), Event("delete few", BRANCH, 0)),
    *(Event("merge", 0, 0), Event("insert", LAKE, 0), Event("update", BRANCH, 0), Event("rebase", 0, 0)),
    *(Event("fork branch", 0, 0), Event("append", CHILD, 0), Event("insert", CHILD, 0), Event("delete", CHILD, 0)),
    *(Event("append", BRANCH, 0), Event("up", 0, 1), Event("insert", BRANCH, 0), Event("add", CHILD, 0), Event("down", 0, 1)),
    *(Event("rename", CHILD, 0), Event("up", 0, 1), Event("maintain", BRANCH, 0), Event("remove", 0, 1)),
    *(Event("iceberg append", LAKE, 0), Event("merge", 0, 0), Event("append", LAKE, 0), Event("insert", BRANCH, 0)),
    *(Event("revert", LAKE, 3), Event("merge", 0, 0)),
]
"""Each merge in it finds changes of both sides, and none is refused."""


@pytest.mark.whole
@EACH_SHARE_OF_1_1
def test_operations_on_branches_of_ducklake_1_1(share: Block, sessions: Sessions, tmp_path: Path) -> None:
    """The same operations with ducklakepy in DuckDB's place; the first share has a fixed history, too."""

    def prove(events: list[Event]) -> Counts:
        counts, client = Counts(), DucklakepyClient()
        with (
            TemporaryDirectory(dir=tmp_path) as folder,
            make_lake(sessions.stack, folder) as fresh,
            make_nesting_lake(fresh) as (lake, _),
            serve(make_settings(lake, **LOCAL)) as server,
            client.opened,
        ):
            prove_merges(lake, server, events, client, counts)
        return counts

    @seed(share.seed)
    @history_settings(share.count, shrink=True)
    @given(draw_events())
    def every_operation_is_right(events: list[Event]) -> None:
        prove(events)

    if share is MERGES_1_1[0]:
        counts = prove(STORY)
        assert (counts.done, counts.refused) == ({"merge": 3, "rebase": 1, "up": 2, "down": 1, "revert": 1}, {})
    every_operation_is_right()

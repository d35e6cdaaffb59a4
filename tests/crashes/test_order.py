"""The order of a commit's effects: rows, COMMIT, the metadata file, the answer."""

from collections.abc import Generator

import pytest

from tests.crashes.asked import Stand
from tests.crashes.kinds import KINDS
from tests.crashes.process import Running, running
from tests.crashes.story import list_effects
from tests.rest.serving import make_settings
from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake

METADATA_FILE = "put *.metadata.json"


@pytest.fixture
def server(lake: FreshLake) -> Generator[Running]:
    """A process that tells its effects."""
    with running(make_settings(lake)) as started:
        yield started


@pytest.mark.whole
def test_a_commit_is_answered_when_it_is_done_and_shown(lake: FreshLake, server: Running) -> None:
    """COMMIT comes before the metadata file, because no state is shown that may never be, and both before the answer.

    A client that hears 200 may read the file that the answer names, and tell others of it.
    """
    stand = Stand(open_client(server.server, lake), lake.duckdb())
    for kind in ("set_property", "set_statistics", "append", "delete_positions", "change_schema", "create", "create_staged"):
        effects = list_effects(server.server, KINDS[kind](stand, kind))
        files = [number for number, name in enumerate(effects) if name == METADATA_FILE]
        assert len(files) == 1, f"{kind}: {effects}"
        assert effects.index("after COMMIT") < files[0] < effects.index("answer"), f"{kind}: {effects}"
        assert "before COMMIT" not in effects[files[0] :], f"{kind}: {effects}"
        assert effects[-1] == "answer", f"{kind}: {effects}"

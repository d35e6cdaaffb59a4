"""Commands when no server runs: each says so in the same words, says what to do, and starts nothing."""

import os
from pathlib import Path

import pytest

from duckicelake.cli import build_cli
from duckicelake.cli_pipeline import get_lake
from duckicelake.embedded.home import find_holder, get_keys, open_home, write_json
from duckicelake.errors import CatalogError
from tests.cli.test_commands import settings_for
from tests.support.commands import Done, find_port, run
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

COMMANDS = (
    ("connect",),
    ("connect", "--format", "json"),
    ("smoke",),
    ("duckdb", "-c", "SELECT 1"),
    ("check",),
    ("check", "--repair"),
    ("check", "--storage"),
    ("grants",),
    ("grant", "read", "warehouse", "alice"),
    ("revoke", "read", "warehouse", "alice"),
    ("principal", "list"),
    ("principal", "add", "alice"),
    ("principal", "rotate", "alice"),
    ("principal", "remove", "alice"),
    ("role", "list"),
    ("role", "add", "analysts"),
    ("role", "remove", "analysts"),
    ("role", "join", "analysts", "alice"),
    ("role", "leave", "analysts", "alice"),
    ("branch", "list"),
    ("branch", "create", "dev"),
    ("branch", "delete", "dev"),
    ("branch", "log", "main"),
    ("branch", "diff", "main", "dev"),
    ("branch", "merge", "dev"),
    ("branch", "reset", "dev"),
    ("tag", "list"),
    ("tag", "create", "v1"),
    ("tag", "delete", "v1"),
    ("dropped", "list"),
    ("undrop", "table:main.t"),
    ("events", "tail"),
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home for commands that are called within this process, in an empty folder and without settings."""
    for name in [name for name in os.environ if name.upper().startswith("DUCKICELAKE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "home"


def refuse(home: Path, *arguments: str) -> str:
    """Return what a command says that is refused."""
    with pytest.raises(CatalogError) as refused:
        build_cli()([*arguments, "--home", str(home)], standalone_mode=False)
    return refused.value.message


def assert_nothing_started(home: Path) -> None:
    """Nobody holds the home, and it has no database."""
    assert find_holder(open_home(home)) is None
    assert not (home / "postgres").exists()


@pytest.mark.parametrize("was_used", whole_after(1, [False, True]), ids=["never started", "stopped"])
def test_every_command_says_the_same_when_nothing_runs(home: Path, *, was_used: bool) -> None:
    """One message for all commands that need the embedded servers; `connect` does not print an address where nothing listens."""
    if was_used:
        get_keys(open_home(home))
        write_json(home / "ports.json", {"postgres": 1, "s3": 2})
    (message,) = {refuse(home, *command) for command in COMMANDS}
    assert message.startswith(f"Nothing runs on the home {home}. Start the server with `")
    assert " serve`" in message
    assert " backends up`" in message
    assert_nothing_started(home)


def test_jobs_say_the_same(home: Path) -> None:
    """Before they start Spark."""
    with pytest.raises(CatalogError, match="Nothing runs on the home"):
        get_lake({"home": home}, None)
    assert_nothing_started(home)


@pytest.fixture
def port() -> int:
    """A port where nothing listens."""
    return find_port()


@pytest.mark.whole
def test_servers_of_yours_without_a_catalog(lake: FreshLake, tmp_path: Path, port: int) -> None:
    """`connect` describes the lake and warns; `smoke` says the same and writes nothing."""

    def call(command: str) -> Done:
        return run(tmp_path, command, "--home", str(tmp_path / "home"), settings=settings_for(lake, port=str(port)))

    before = lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone()
    warned, refused = call("connect"), call("smoke")
    message = f"No catalog answers at http://127.0.0.1:{port}. Start it with "
    assert (warned.status, f"'uri': 'http://127.0.0.1:{port}'" in warned.out, message in warned.err) == (0, True, True)
    assert (refused.status, refused.out, message in refused.err) == (1, "", True)
    assert lake.psycopg().execute("SELECT max(snapshot_id) FROM ducklake_snapshot").fetchone() == before

"""Accounts in settings: what is refused, and what is never shown."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr

from duckicelake.app import open_accounts
from duckicelake.commands.serve import join_token_key
from duckicelake.config import SettingsError, read_settings
from duckicelake.embedded.home import open_home
from duckicelake.errors import CatalogError

CLIENTS = "me:hunter2|ns:a:r"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder and no setting in the environment."""
    for name in [name for name in os.environ if name.upper().startswith("DUCKICELAKE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    yield tmp_path


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        pytest.param({"oauth_clients": CLIENTS}, "require_auth", id="nobody-asked"),
        pytest.param(
            {"require_auth": True, "oauth_clients": CLIENTS, "postgres_dsn": "host=x", "allowed_locations": ["*"]},
            "allowed_locations",
            id="everything-open",
        ),
        pytest.param({"host": "0.0.0.0"}, "insecure", id="open-door"),
    ],
)
def test_half_an_authentication_is_refused(settings: dict[str, object], word: str) -> None:
    """Whoever sets a part of it believes to be safe; the message names the rest, and no secret."""
    with pytest.raises(SettingsError) as refused:
        read_settings(settings)
    assert word in refused.value.message
    assert "hunter2" not in refused.value.message


def test_with_accounts_other_machines_may_ask() -> None:
    """The door may be open when somebody stands in it."""
    assert open_accounts(read_settings({"host": "0.0.0.0", "require_auth": True, "oauth_clients": CLIENTS}))


def test_without_authentication_there_are_no_accounts() -> None:
    """And no token is ever looked at."""
    assert open_accounts(read_settings({})) is None


def test_clients_come_from_a_file_too(folder: Path) -> None:
    """Both sources are one list."""
    (folder / "clients").write_text("# ours\nyou:hunter3|*\n")
    given = {"require_auth": True, "oauth_clients_file": Path("clients")}
    assert open_accounts(read_settings(given))
    with pytest.raises(CatalogError, match="which another one has too"):
        open_accounts(read_settings(given | {"oauth_clients": "you:other|*"}))


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"oauth_clients": "me:hunter2"}, id="no-grant"),
        pytest.param({"oauth_clients_file": Path("missing")}, id="no-file"),
        pytest.param({"oauth_clients": CLIENTS, "token_keys": "hunter2"}, id="short-key"),
    ],
)
def test_what_cannot_be_used_stops_the_start_without_its_secret(settings: dict[str, object]) -> None:
    """Found when the accounts are opened, before anything is started."""
    with pytest.raises(CatalogError) as refused:
        open_accounts(read_settings({"require_auth": True, **settings}))
    assert "hunter2" not in refused.value.message


def test_settings_do_not_show_secrets() -> None:
    """Not even when somebody prints them."""
    settings = read_settings({"require_auth": True, "oauth_clients": CLIENTS, "token_keys": "hunter2" * 8})
    assert "hunter2" not in repr(settings)


def test_a_key_for_tokens_is_kept_in_the_home(folder: Path) -> None:
    """Made once, for its owner only; a configured one is left alone."""
    settings, home = read_settings({"require_auth": True, "oauth_clients": CLIENTS}), open_home(folder / "home")
    first, second = (join_token_key(settings, home).token_keys for _ in range(2))
    assert first is not None
    assert first == second
    assert (home.path / "token.key").stat().st_mode & 0o777 == 0o600
    configured = settings.model_copy(update={"token_keys": SecretStr("k" * 40)})
    assert join_token_key(configured, home).token_keys == SecretStr("k" * 40)
    assert join_token_key(read_settings({}), home).token_keys is None

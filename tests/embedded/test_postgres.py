"""The embedded Postgres where it cannot run: messages that say what would help, and no half-made cluster."""

import os
import stat
from pathlib import Path

import pytest

from duckicelake.embedded.home import EmbeddedError, Home, get_keys
from duckicelake.embedded.stack import plan_postgres


def test_root_without_setpriv_is_told_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres refuses root, so root needs setpriv, another user or a Postgres of its own."""
    home = Home(tmp_path)
    keys = get_keys(home)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EmbeddedError, match=r"(?s)refuses to run as root.*util-linux.*DUCKICELAKE_POSTGRES_DSN"):
        plan_postgres(home, keys, 5)


def test_a_cluster_that_cannot_be_made_leaves_no_password_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """initdb's own message is shown, and the next start begins again."""
    home = Home(tmp_path)
    keys = get_keys(home)
    monkeypatch.setattr("duckicelake.embedded.stack.ADMIN_ROLE", "pg_reserved")
    with pytest.raises(EmbeddedError, match=r"(?s)cannot be made in .*/postgres: .*pg_"):
        plan_postgres(home, keys, 5)
    assert not (tmp_path / "postgres").exists()
    assert not (tmp_path / "postgres.password").exists()
    monkeypatch.undo()
    plan_postgres(home, keys, 5)
    assert stat.S_IMODE((tmp_path / "postgres").stat().st_mode) == 0o700
    assert keys.postgres_admin_password not in (tmp_path / "postgres" / "postgresql.conf").read_text()

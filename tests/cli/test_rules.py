"""Principals, roles and grants from the command line, for a server that runs."""

from pathlib import Path

import pytest

from duckicelake.access.grants import format_name
from tests.cli.test_commands import settings_for
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.support.commands import Done, run
from tests.support.lakes import FreshLake

T = "namespaces/a/tables/t"


@pytest.mark.whole
def test_the_command_line_manages_who_may_do_what(lake: FreshLake, tmp_path: Path) -> None:
    """Each command is in force when it ends, prints a secret once, and stands in the record."""

    def call(*words: str) -> Done:
        return run(tmp_path, *words, "--home", str(tmp_path / "home"), settings=settings_for(lake))

    def do(*words: str) -> str:
        done = call(*words)
        assert done.status == 0, done.err
        return done.out

    for words, empty in ((("grants",), "Nothing is granted."), (("role", "list"), "There are no roles.")):
        done = call(*words)
        assert (done.status, done.out, empty in done.err) == (0, "", True)
    with guard(lake) as guarded:
        managed = Managed(guarded)
        name, _, secret = do("principal", "add", "alice").strip().partition(":")
        managed.secrets[name] = secret
        do("role", "add", "analysts")
        do("role", "join", "analysts", "alice")
        do("grant", "read,list", "table:a.t", "role:analysts")
        assert managed.statuses("alice", T) == [200]
        assert do("grants") == "list,read table:a.t role:analysts\n"
        assert do("role", "list") == "analysts: alice\n"
        do("principal", "add", "reader", "--no-secret")
        assert do("principal", "list") == "alice\nreader (no secret here)\n"
        do("revoke", "read,list", "table:a.t", "role:analysts")
        assert managed.statuses("alice", T) == [404]
        managed.secrets[name] = do("principal", "rotate", "alice").strip().partition(":")[2]
        assert managed.secrets[name] != secret
        assert managed.statuses("alice", T) == [404]
        do("role", "leave", "analysts", "alice")
        do("role", "remove", "analysts")
        do("principal", "remove", "alice")
        assert managed.ask_token("alice").status == 401
    warned = call("principal", "add", "bob")
    assert (warned.status, "no effect while require_auth is false" in warned.err) == (0, True)
    refused = call("grant", "read", "table:a.t", "nobody")
    assert (refused.status, refused.out) == (1, "")
    assert "Principal does not exist: nobody" in refused.err
    assert_recorded(guarded)


def assert_recorded(guarded: Guarded) -> None:
    """What was done stands in the record, by nobody's name that could be a principal's."""
    rows = guarded.lake.psycopg().execute("SELECT operation, objects FROM iceberg_audit WHERE principal = 'command line' ORDER BY id")
    assert [(operation, objects) for operation, objects in rows.fetchall()] == [
        ("addPrincipal", ["alice"]),
        ("addRole", ["role:analysts"]),
        ("addMember", ["role:analysts", "alice"]),
        ("grant", ["role:analysts", "a.t"]),
        ("addPrincipal", ["reader"]),
        ("revoke", ["role:analysts", "a.t"]),
        ("rotatePrincipal", ["alice"]),
        ("removeMember", ["role:analysts", "alice"]),
        ("removeRole", ["role:analysts"]),
        ("removePrincipal", ["alice"]),
        ("addPrincipal", ["bob"]),
    ]


QUOTE, DOUBLE_QUOTE, SHELL = (
    "x'); DROP TABLE iceberg_grant; --",
    'x"; DROP TABLE iceberg_grant; /* */ -- \\',
    "$(touch in) `touch in`; touch in\n'; \\g",
)


@pytest.mark.long
def test_names_are_never_statements(lake: FreshLake, tmp_path: Path) -> None:
    """Principals and roles of such names are refused; a table of one is granted as grants are written, to nobody but who is named."""

    def call(*words: str) -> Done:
        return run(tmp_path, *words, "--home", str(tmp_path / "home"), settings=settings_for(lake))

    names = [name.replace('"', '""') for name in (QUOTE, DOUBLE_QUOTE + SHELL)]
    lake.duckdb().execute('CREATE SCHEMA lake."{0}"; CREATE TABLE lake."{0}"."{1}" (i INT)'.format(*names))
    assert call("principal", "add", "alice", "--no-secret").status == 0
    for words in (
        ("principal", "add", QUOTE, "--no-secret"),
        ("role", "join", DOUBLE_QUOTE, SHELL),
        ("revoke", "read", f"table:a.{SHELL}", "alice"),
    ):
        done = call(*words)
        assert (done.status, done.out) == (1, ""), words
        assert "Traceback" not in done.err
    place = f"table:{format_name((QUOTE, DOUBLE_QUOTE + SHELL))}"
    done = call("grant", "read", place, "alice")
    assert (done.status, done.err) == (0, "")
    assert call("grants").out == f"read {place} alice\n"
    assert not (tmp_path / "in").exists()
    with pytest.raises(ValueError, match="null byte"):
        call("principal", "add", "no argument holds a \0")

"""Commands as an account: its secret comes from the environment or a file, and is on no screen by accident."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from tests.cli.test_commands import settings_for
from tests.cli.test_snippets import run_sql
from tests.rest.auth.principals import Guarded, guard, secret_of
from tests.support.commands import Done, run
from tests.support.lakes import FreshLake, open_duckdb
from tests.support.tiers import long_after

SECRET = secret_of("admin")


@pytest.fixture
def guarded(lake: FreshLake) -> Iterator[Guarded]:
    """A server that wants a token, and vends keys."""
    with guard(lake, sts_role_arn=ROLE_ARN) as running:
        yield running


def call(guarded: Guarded, folder: Path, *arguments: str, **more: str) -> Done:
    """Run a command with the server's settings."""
    settings = settings_for(guarded.lake, require_auth="true", port=str(guarded.server.port), **more)
    return run(folder, *arguments, "--home", str(folder / "home"), settings=settings)


def write_credential(folder: Path, principal: str = "admin") -> str:
    """A file with a principal's id and secret; returns its path."""
    (folder / "me").write_text(f"{principal}:{secret_of(principal)}\n")
    return str(folder / "me")


@pytest.mark.whole
@pytest.mark.parametrize("source", long_after(1, ["environment", "file"]))
def test_smoke_reads_as_an_account(guarded: Guarded, tmp_path: Path, source: str) -> None:
    """Both readers have an id and a secret, and no keys but those that the catalog gives them."""
    if source == "file":
        done = call(guarded, tmp_path, "smoke", "--credential-file", write_credential(tmp_path))
    else:
        done = call(guarded, tmp_path, "smoke", credential=f"admin:{SECRET}")
    assert (done.status, done.out.count("same rows")) == (0, 2), done.out + done.err
    assert SECRET not in done.out + done.err


@pytest.mark.whole
def test_smoke_says_what_it_lacks(guarded: Guarded, tmp_path: Path) -> None:
    """Where the server asks for accounts; a wrong secret, and an account that may not read, are the readers' failures."""
    done = call(guarded, tmp_path, "smoke")
    assert (done.status, "DUCKICELAKE_CREDENTIAL" in done.err) == (1, True)
    for credential in ("admin:hunter2", f"reader:{secret_of('reader')}"):
        done = call(guarded, tmp_path, "smoke", credential=credential)
        assert (done.status, done.out.count("same rows")) == (1, 0)
        assert credential.partition(":")[2] not in done.out + done.err


@pytest.mark.whole
@pytest.mark.parametrize(
    "text", long_after(1, ["", "me", *(pytest.param(text, marks=pytest.mark.long) for text in ("me:", ":hunter2", "me:hun\nter2"))])
)
def test_what_is_no_credential_is_refused(guarded: Guarded, tmp_path: Path, text: str) -> None:
    """Without showing it."""
    (tmp_path / "me").write_text(text)
    done = call(guarded, tmp_path, "connect", "--credential-file", str(tmp_path / "me"))
    assert (done.status, f"{tmp_path}/me is no id:secret" in done.err) == (1, True)
    assert "hun" not in done.out + done.err
    missing = call(guarded, tmp_path, "connect", "--credential-file", "nowhere")
    assert (missing.status, "nowhere cannot be read" in missing.err) == (1, True)


@pytest.mark.whole
def test_the_text_hides_the_accounts_secret(guarded: Guarded, tmp_path: Path) -> None:
    """Unless it is asked for; machines get it always. No text of Iceberg's clients has the store's own keys."""
    path = write_credential(tmp_path)
    for client in ("pyiceberg", "spark", "trino", "duckdb"):
        hidden = call(guarded, tmp_path, "connect", "--client", client, "--credential-file", path).out
        shown = call(guarded, tmp_path, "connect", "--client", client, "--show-secrets", "--credential-file", path).out
        assert SECRET not in hidden
        assert SECRET in shown
        assert "admin" in hidden
        assert guarded.lake.store.access_key_id not in shown
    facts = json.loads(call(guarded, tmp_path, "connect", "--format", "json", "--credential-file", path).out)
    assert facts["credential"] == f"admin:{SECRET}"
    exports = call(guarded, tmp_path, "connect", "--format", "env", credential=f"admin:{SECRET}").out
    assert f"export LAKE_CREDENTIAL=admin:{SECRET}\n" in exports


@pytest.mark.whole
def test_an_unknown_account_has_its_place_in_the_text(guarded: Guarded, tmp_path: Path) -> None:
    """Who asks without one sees where it belongs; machines see that there is none."""
    text = call(guarded, tmp_path, "connect", "--show-secrets").out
    assert text.count("ID:SECRET") == 3
    assert "CLIENT_ID 'ID', CLIENT_SECRET 'SECRET'" in text
    assert json.loads(call(guarded, tmp_path, "connect", "--format", "json").out)["credential"] is None


@pytest.mark.whole
def test_duckdb_attaches_the_lake_with_what_a_reader_gets(guarded: Guarded, tmp_path: Path) -> None:
    """No more than it may read, and nothing with the server's own role or keys; its secrets are hidden until they are asked for."""
    arguments = ("connect", "--client", "ducklake-reader", "--credential-file", write_credential(tmp_path, "reader"))
    hidden, shown = call(guarded, tmp_path, *arguments), call(guarded, tmp_path, *arguments, "--show-secrets")
    assert (hidden.status, shown.status) == (0, 0), hidden.err + shown.err
    conn = open_duckdb()
    guarded.lake.opened.callback(conn.close)
    run_sql(conn, shown.out)
    assert conn.execute("SELECT sum(i) FROM lake.a.t").fetchone() == (45,)
    with pytest.raises(duckdb.Error):
        conn.execute("SELECT * FROM lake.b.t")
    with pytest.raises(duckdb.Error):
        conn.execute("DELETE FROM lake.a.t")
    secrets = [next(filter(None, found)) for found in re.findall(r"password=([^\s']+)|SECRET '([^']+)'|SESSION_TOKEN '([^']+)'", shown.out)]
    assert len(secrets) == 3
    assert not [secret for secret in secrets if secret in hidden.out]
    assert guarded.lake.store.access_key_id not in shown.out


@pytest.mark.whole
def test_who_reads_nothing_is_told_why_there_is_nothing_to_attach(guarded: Guarded, tmp_path: Path) -> None:
    """By the server's own words, or by what is missing; no secret is shown."""
    blind = write_credential(tmp_path, "blind")
    for arguments, word in (
        (("--credential-file", blind), "no right to read anything"),
        ((), "DUCKICELAKE_CREDENTIAL"),
    ):
        done = call(guarded, tmp_path, "connect", "--client", "ducklake-reader", *arguments)
        assert (done.status, word in done.err) == (1, True), done.err
    (tmp_path / "me").write_text("reader:hunter2")
    done = call(guarded, tmp_path, "connect", "--client", "ducklake-reader", "--credential-file", str(tmp_path / "me"))
    assert (done.status, "hunter2" in done.out + done.err) == (1, False)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
def test_jobs_write_as_an_account(guarded: Guarded, tmp_path: Path) -> None:
    """`ingest` with a file, `verify` with the environment."""
    (tmp_path / "trips.csv").write_text("id,fare\n1,2.5\n2,3.5\n")
    path = write_credential(tmp_path, "owner")
    done = call(guarded, tmp_path, "pipeline", "ingest", "trips.csv", "a.trips", "--credential-file", path)
    assert done.status == 0, done.err
    assert guarded.lake.duckdb().execute("SELECT count(*) FROM lake.a.trips").fetchone() == (2,)
    record = guarded.lake.psycopg().execute("SELECT DISTINCT principal FROM iceberg_audit WHERE outcome = 'done'").fetchall()
    assert record == [("owner",)]
    same = call(guarded, tmp_path, "pipeline", "verify", "a.trips", credential=f"reader:{secret_of('reader')}")
    assert same.status == 0, same.out + same.err

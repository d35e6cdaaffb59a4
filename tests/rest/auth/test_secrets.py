"""Secrets stand in no log line and in no answer."""

import faulthandler
import logging
import tempfile
from typing import Literal

import pytest

from duckicelake.commands.serve import configure_logging
from duckicelake.embedded.object_store import ROLE_ARN
from duckicelake.store.vending import SessionCredentials, Vendor
from tests.rest.auth.principals import Guarded, guard, secret_of
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

DELEGATION = {"X_Iceberg_Access_Delegation": "vended-credentials"}
PATH = "namespaces/a/tables/t"


def go_through(guarded: Guarded) -> list[str]:
    """Ask rightly and wrongly for tokens and keys, and return the secrets that came with it."""
    token = guarded.token("reader")
    guarded.ask_token({"grant_type": "client_credentials"}, ("reader", "wrong-secret"))
    guarded.server.get(f"{PATH}?token={'x' * 10}", {"Authorization": f"Bearer {token}x"})
    told = guarded.get("reader", PATH, **DELEGATION).json
    guarded.get("reader", f"{PATH}/credentials")
    keys = [told["config"][name] for name in ("s3.secret-access-key", "s3.session-token")] if "config" in told else []
    store = guarded.lake.store
    return [token, "wrong-secret", secret_of("reader"), store.access_key_id, store.secret_access_key, *keys]


@pytest.mark.parametrize("endpoint", whole_after(1, [pytest.param(None, id="up"), pytest.param("http://127.0.0.1:9", id="down")]))
def test_the_log_holds_no_secret(lake: FreshLake, caplog: pytest.LogCaptureFixture, endpoint: str | None) -> None:
    """At the level of info, whatever goes right or wrong."""
    with caplog.at_level(logging.INFO), guard(lake, sts_role_arn=ROLE_ARN, sts_endpoint=endpoint) as guarded:
        secrets = go_through(guarded)
    assert caplog.text
    for secret in secrets:
        assert secret not in caplog.text


def test_answers_hold_no_secret_but_the_asked_for(guarded: Guarded) -> None:
    """Refusals repeat neither tokens nor secrets, and metrics know no names."""
    token = guarded.token("reader")
    refused = [
        guarded.server.get(PATH, {"Authorization": f"Bearer {token}x"}),
        guarded.ask_token({"grant_type": "client_credentials"}, ("reader", "wrong-secret")),
        guarded.ask_token({"grant_type": "client_credentials", "scope": "ns:b:rw"}, ("reader", secret_of("reader"))),
        guarded.get("reader", "namespaces/b/tables/t"),
        guarded.server.get("/metrics"),
    ]
    for answer in refused:
        body = answer.body.decode()
        assert token not in body
        assert "wrong-secret" not in body
        assert secret_of("reader") not in body


@pytest.mark.parametrize("log_format", whole_after(1, ["plain", "json"]))
def test_what_breaks_within_a_request_tells_no_secret(
    lake: FreshLake, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log_format: Literal["plain", "json"]
) -> None:
    """A bug where token and keys are at hand: 500 with an id, a traceback in the log without values, and so are the stacks of a crash."""
    seen: list[str] = []

    def break_it(vendor: Vendor, policy: str, now_s: float) -> SessionCredentials:
        keys = get_keys(vendor, policy, now_s)
        seen.extend((keys.secret_access_key, keys.session_token, vendor.store.secret_access_key or ""))
        faulthandler.dump_traceback(dump)
        raise AssertionError(f"{vendor} {keys!r}")

    get_keys = Vendor.get_keys
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    with tempfile.TemporaryFile("w+") as dump:
        configure_logging(log_format, "info")
        try:
            with guard(lake, sts_role_arn=ROLE_ARN) as guarded:
                token = guarded.token("reader")
                monkeypatch.setattr(Vendor, "get_keys", break_it)
                answer = guarded.server.get(PATH, {"Authorization": f"Bearer {token}", "X-Iceberg-Access-Delegation": "vended-credentials"})
        finally:
            root.handlers = handlers
            root.setLevel(level)
        dump.seek(0)
        told = capsys.readouterr().err + dump.read() + answer.body.decode()
    assert answer.error[0] == 500
    assert "break_it" in told.partition("Traceback")[2]
    assert len(seen) == 3
    for secret in (token, secret_of("reader"), *seen):
        assert secret not in told

"""What a token service is asked, as AWS's specification of AssumeRole has it, and what is made of its answers."""

import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from threading import Thread

import pytest

from duckicelake.config import Settings
from duckicelake.errors import ServiceUnavailable
from duckicelake.store.s3 import StoreSettings
from duckicelake.store.vending import StsSettings, Vendor
from duckicelake.store_settings import read_store_settings, read_sts_settings
from tests.support.sts import Asked, run_sts

ROLE = "arn:aws:iam::123456789012:role/lake"
POLICY = '{"Version":"2012-10-17","Statement":[]}'
STORE = StoreSettings(None, "eu-central-1", "AKIDEXAMPLE", "a-secret")


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """No keys, regions or proxies of this machine."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def ask(store: StoreSettings, sts: StsSettings, ends: str = "2999-01-01T00:00:00Z") -> Asked:
    """What a service is asked for keys."""
    seen: list[Asked] = []

    def give(asked: Asked) -> tuple[str, str, str, str]:
        seen.append(asked)
        return "ASIAEXAMPLE", "its-secret", "its-token", ends

    with run_sts(give) as endpoint:
        Vendor(store, StsSettings(sts.role_arn, endpoint, sts.external_id, sts.lifetime_s)).get_keys(POLICY, time.time())
    [asked] = seen
    return asked


def test_the_role_is_assumed_with_its_policy() -> None:
    """Each setting is a parameter; the request is signed for the token service in the store's region."""
    asked = ask(STORE, StsSettings(ROLE, external_id="a-partner/7", lifetime_s=1200))
    told = {name: asked[name] for name in ("Action", "Version", "RoleArn", "ExternalId", "DurationSeconds", "Policy")}
    assert told == {
        "Action": "AssumeRole",
        "Version": "2011-06-15",
        "RoleArn": ROLE,
        "ExternalId": "a-partner/7",
        "DurationSeconds": "1200",
        "Policy": POLICY,
    }
    assert 2 <= len(asked["RoleSessionName"]) <= 64
    assert "Credential=AKIDEXAMPLE/" in asked["authorization"]
    assert "/eu-central-1/sts/aws4_request" in asked["authorization"]
    assert "a-secret" not in str(asked)


def test_without_an_external_id_none_is_told() -> None:
    """AWS refuses an empty one."""
    assert "ExternalId" not in ask(STORE, StsSettings(ROLE))


def test_without_keys_those_of_the_machine_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    """A role of an instance has a token of its own."""
    for name, text in {"ACCESS_KEY_ID": "ASIAMACHINE", "SECRET_ACCESS_KEY": "m-secret", "SESSION_TOKEN": "m-token"}.items():
        monkeypatch.setenv(f"AWS_{name}", text)
    asked = ask(StoreSettings(None, "us-east-1", None, None), StsSettings(ROLE))
    assert "Credential=ASIAMACHINE/" in asked["authorization"]
    assert asked["x-amz-security-token"] == "m-token"


@contextmanager
def run_proxy(seen: list[str]) -> Generator[str]:
    """A proxy that notes where somebody wants to go, and lets nobody through."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    opened, _ = listening.accept()
                except OSError:
                    return
                with opened:
                    seen.append(opened.recv(4096).decode().split("\r\n")[0])
                    opened.sendall(b"HTTP/1.1 503 Nobody\r\nContent-Length: 0\r\n\r\n")

        thread = Thread(target=answer)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def test_without_an_endpoint_it_is_awss_in_the_stores_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """The regional one, as its keys are good everywhere; who does not answer is named, and no secret."""
    seen: list[str] = []
    with run_proxy(seen) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy)
        with pytest.raises(ServiceUnavailable) as refused:
            Vendor(STORE, StsSettings(ROLE)).get_keys(POLICY, time.time())
    assert {line.rpartition(" ")[0] for line in seen} == {"CONNECT sts.eu-central-1.amazonaws.com:443"}
    assert "sts.eu-central-1.amazonaws.com" in refused.value.message
    assert "a-secret" not in refused.value.message


@pytest.mark.parametrize("code", ["AccessDenied", "PackedPolicyTooLarge", "RegionDisabledException", "ExpiredToken"])
def test_a_refusal_is_told_by_its_code_alone(code: str) -> None:
    """AWS's own words name roles and policies."""
    with run_sts(lambda _: code) as endpoint, pytest.raises(ServiceUnavailable) as refused:
        Vendor(STORE, StsSettings(ROLE, endpoint)).get_keys(POLICY, time.time())
    assert f"({code})" in refused.value.message
    assert ROLE not in refused.value.message


def test_keys_end_when_the_service_says_so() -> None:
    """A role may allow less than was asked for: what counts is the answer."""
    now_s = time.time()
    ends = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now_s + 1000))
    with run_sts(lambda _: ("ASIAEXAMPLE", "its-secret", "its-token", ends)) as endpoint:
        keys = Vendor(STORE, StsSettings(ROLE, endpoint, lifetime_s=3600)).get_keys(POLICY, now_s)
    assert abs(keys.expires_at_ms - (now_s + 1000) * 1000) <= 1000
    assert abs(keys.fresh_until_s - (now_s + 500)) <= 1
    assert "its-secret" not in repr(keys)
    assert "its-token" not in repr(keys)


def test_each_lake_has_settings_of_its_own() -> None:
    """What a lake leaves out comes from the top level."""
    settings = Settings(
        postgres_dsn="host=x",
        sts_role_arn=ROLE,
        sts_external_id="ours",
        lakes={
            "a": {"s3_region": "eu-west-1", "sts_endpoint": "https://sts.example.org"},
            "b": {"sts_role_arn": f"{ROLE}-b", "vended_lifetime_s": 900},
        },
    )
    a, b = settings.lakes()
    assert read_sts_settings(a, str(a.sts_role_arn)) == StsSettings(ROLE, "https://sts.example.org", "ours", 3600)
    assert read_store_settings(a).region == "eu-west-1"
    assert read_sts_settings(b, str(b.sts_role_arn)) == StsSettings(f"{ROLE}-b", None, "ours", 900)

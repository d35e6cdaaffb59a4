"""`check --storage` on real stores: all as it must be, and each thing that is not is named."""

from pathlib import Path

import pytest

from duckicelake.embedded.object_store import ROLE_ARN
from tests.cli.test_commands import settings_for
from tests.rest.auth.vended import open_s3
from tests.support.commands import Done, run
from tests.support.lakes import FreshLake
from tests.support.sts import Asked, Given, assume, run_sts
from tests.support.tiers import long_after

LATER = "2999-01-01T00:00:00Z"


def check(lake: FreshLake, folder: Path, **more: str) -> Done:
    """Run the command on a lake of one's own."""
    settings = settings_for(lake, **({"sts_role_arn": ROLE_ARN} | more))
    return run(folder, "check", "--storage", "--home", str(folder / "home"), settings=settings)


def list_lines(done: Done, verdict: str) -> list[str]:
    """What has this verdict."""
    return [line.removeprefix(verdict).strip() for line in done.out.splitlines() if line.startswith(verdict)]


def list_left(lake: FreshLake) -> list[str]:
    """What lies below the lake's ICEBERG_PATH."""
    root = open_s3(lake.store.endpoint, (lake.store.access_key_id, lake.store.secret_access_key, None))
    bucket, _, key = lake.iceberg_path.removeprefix("s3://").partition("/")
    return [found["Key"] for found in root.list_objects_v2(Bucket=bucket, Prefix=key).get("Contents", ())]


@pytest.mark.whole
def test_a_store_that_enforces_policies_holds(each_lake: FreshLake, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Every line is as it must be, no secret is shown, and nothing stays."""
    lake = each_lake
    done = check(lake, tmp_path)
    assert done.status == 0, done.out + done.err
    assert not list_lines(done, "failed")
    lines = list_lines(done, "ok")
    for word in ("its own table is written", "another table", "lists by other prefixes", "copies from others", "without its session"):
        assert any(word in line for line in lines), word
    tells_case = "minio" in request.node.name
    assert f"folders whose names differ by case alone: differ: {'yes' if tells_case else 'no'}" in done.out
    assert f"signed requests: {'none are' if tells_case else 'are'} given" in done.out
    assert lake.store.secret_access_key not in done.out + done.err
    assert list_left(lake) == []


@pytest.mark.whole
def test_keys_that_are_the_roots_fail_everywhere(lake: FreshLake, tmp_path: Path) -> None:
    """What nobody enforces is found, by its name; also then nothing stays."""
    store = lake.store
    with run_sts(lambda _: (store.access_key_id, store.secret_access_key, "", LATER)) as endpoint:
        done = check(lake, tmp_path, sts_endpoint=endpoint)
    assert done.status == 1, done.out + done.err
    failed = list_lines(done, "failed")
    for whose in ("another table", "a table with a longer name", "a table with a shorter name", "what lies above"):
        for key in ("key to read", "key to write"):
            [line] = [line for line in failed if line.startswith(f"{key}: {whose}: ")]
            for request in ("GET", "HEAD", "LIST", "PUT", "CopyObject to it", "multipart upload", "DELETE", "DeleteObjects"):
                assert f"{request} (" in line
    for name in (
        "copies from others",
        "lists by other prefixes",
        "nothing is written to its own",
        "DuckLake's folder of it is not written",
    ):
        assert any(name in line for line in failed), name
    assert any(line.startswith("keys end when they were asked to") for line in failed)
    assert any(line.startswith("nothing of others was changed") for line in failed)
    assert list_left(lake) == []


@pytest.mark.whole
def test_a_service_that_drops_the_policy_is_found(lake: FreshLake, tmp_path: Path) -> None:
    """Then a session has all that the role has."""

    def give(asked: Asked) -> Given:
        assert "Policy" in asked
        found = assume(lake.store, asked)
        return found["AccessKeyId"], found["SecretAccessKey"], found["SessionToken"], found["Expiration"].isoformat()

    with run_sts(give) as endpoint:
        done = check(lake, tmp_path, sts_endpoint=endpoint)
    assert done.status == 1
    failed = list_lines(done, "failed")
    assert any(line.startswith("key to read: another table: not refused: GET (done)") for line in failed)
    assert not any("without its session" in line for line in failed)
    assert list_left(lake) == []


@pytest.mark.long
def test_without_keys_there_is_nothing_to_prove(lake: FreshLake, local_lake: FreshLake, tmp_path: Path) -> None:
    """The line says what to set; of a lake in folders too."""
    done = run(tmp_path, "check", "--storage", "--home", str(tmp_path / "home"), settings=settings_for(lake))
    assert (done.status, "sts_role_arn is not set" in done.out) == (1, True)
    assert len([line for line in list_lines(done, "ok") if line.startswith("catalog's own keys")]) == 4
    local = {name: text for name, text in settings_for(local_lake).items() if "S3" not in name}
    done = run(tmp_path, "check", "--storage", "--home", str(tmp_path / "home"), settings=local)
    assert (done.status, "is no S3" in done.out) == (1, True)


@pytest.mark.parametrize("name", long_after(1, ["sts_endpoint", "s3_endpoint"]))
def test_what_does_not_answer_is_named(lake: FreshLake, tmp_path: Path, name: str) -> None:
    """Within seconds, without a trace and without a secret."""
    done = check(lake, tmp_path, **{name: "http://127.0.0.1:9"})
    assert done.status == 1
    assert "127.0.0.1:9" in done.out
    assert "Traceback" not in done.out + done.err
    assert lake.store.secret_access_key not in done.out + done.err


def test_proving_and_repairing_are_two_things(tmp_path: Path) -> None:
    """One call does one of them."""
    done = run(tmp_path, "check", "--storage", "--repair", "--home", str(tmp_path / "home"))
    assert (done.status, "ask for one of them" in done.err) == (2, True)

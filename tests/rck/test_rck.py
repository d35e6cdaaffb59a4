"""Apache Iceberg's own compatibility kit, with the Java client, against the server."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.rck.jars import fetch_kit
from tests.rck.known import SKIPPED, SKIPPED_ON_S3
from tests.rck.running import Kind, Result, list_keys, run_kit
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack
from tests.support.trino.server import cache_folder

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("rck")]

TESTS: Mapping[tuple[str, Kind], int] = {
    ("1.11.0", "table"): 106,
    ("1.11.0", "view"): 51,
    ("1.10.1", "table"): 103,
    ("1.10.1", "view"): 47,
}
NO_STORE = {"s3_endpoint": None, "s3_access_key_id": None, "s3_secret_access_key": None}
KINDS = [pytest.param("table", id="tables"), pytest.param("view", id="views")]
RUNS = [
    pytest.param("1.11.0", 1, id="1.11.0"),
    pytest.param("1.11.0", 2, id="1.11.0-twice", marks=pytest.mark.long),
    pytest.param("1.10.1", 2, id="1.10.1-twice", marks=pytest.mark.long),
]


def run(lake: FreshLake, kind: Kind, base: str, release: tuple[str, int], skipped: Mapping[str, str]) -> None:
    """Run a release's kit so many times in a row against a server that lets clients write wherever the kit wants to."""
    iceberg, times = release
    changed = {} if base.startswith("s3:") else dict.fromkeys(NO_STORE)
    with serve(make_settings(lake, allowed_locations=("*",), **changed)) as server:
        for _ in range(times):
            results = run_kit(fetch_kit(cache_folder(), iceberg), kind, server, list_keys(lake.store), base)
            check_known(results, "failed", {})
            check_known(results, "skipped", skipped)
            assert len(results) == TESTS[iceberg, kind]


def check_known(results: Mapping[str, Result], outcome: str, known: Mapping[str, str]) -> None:
    """The tests with that outcome are those that are known, all of them and no other."""
    found = {name: result.reason for name, result in results.items() if result.outcome == outcome}
    told = "\n".join(f"{name}: {reason[:300]}" for name, reason in found.items() if name not in known)
    assert not told, f"{outcome}:\n{told}"
    assert sorted(known.keys() - found.keys()) == [], f"no longer {outcome}: take them out of known.py"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("iceberg", "times"), RUNS)
def test_the_kit_on_s3(stack: SharedStack, kind: Kind, iceberg: str, times: int) -> None:
    """No test fails, and those that are passed over are known by name."""
    with make_lake(stack) as lake:
        skipped = {**SKIPPED[kind], **SKIPPED_ON_S3[iceberg, kind]}
        run(lake, kind, f"{lake.iceberg_path}rck", (iceberg, times), skipped)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("iceberg", "times"), RUNS)
def test_the_kit_on_a_folder(stack: SharedStack, kind: Kind, iceberg: str, times: int, tmp_path: Path) -> None:
    """The same with files on the local disk."""
    with make_lake(stack, str(tmp_path)) as lake:
        run(lake, kind, f"file:{tmp_path}/rck", (iceberg, times), SKIPPED[kind])

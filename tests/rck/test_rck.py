"""Apache Iceberg's own compatibility kit, with the Java client, against the server."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.rck.jars import fetch_kit
from tests.rck.known import SKIPPED, SKIPPED_ON_S3
from tests.rck.running import Kind, Result, run_kit
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack
from tests.support.trino.server import cache_folder

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("rck")]

ICEBERG = "1.11.0"
TESTS: Mapping[Kind, int] = {"table": 106, "view": 51}
NO_STORE = {"s3_endpoint": None, "s3_access_key_id": None, "s3_secret_access_key": None}
KINDS = [pytest.param("table", id="tables"), pytest.param("view", id="views")]


def run(lake: FreshLake, kind: Kind, base: str, **changed: None) -> Mapping[str, Result]:
    """Run a kit against a server of its own, which lets clients write wherever the kit wants to."""
    with serve(make_settings(lake, allowed_locations=("*",), **changed)) as server:
        return run_kit(fetch_kit(cache_folder(), ICEBERG), kind, server, lake, base)


def check_known(results: Mapping[str, Result], outcome: str, known: Mapping[str, str]) -> None:
    """The tests with that outcome are those that are known, all of them and no other."""
    found = {name: result.reason for name, result in results.items() if result.outcome == outcome}
    told = "\n".join(f"{name}: {reason[:300]}" for name, reason in found.items() if name not in known)
    assert not told, f"{outcome}:\n{told}"
    assert sorted(known.keys() - found.keys()) == [], f"no longer {outcome}: take them out of known.py"


@pytest.mark.parametrize("kind", KINDS)
def test_the_kit_on_s3(stack: SharedStack, kind: Kind) -> None:
    """No test fails, and those that are passed over are known by name."""
    with make_lake(stack) as lake:
        results = run(lake, kind, f"{lake.iceberg_path}rck")
    check_known(results, "failed", {})
    check_known(results, "skipped", {**SKIPPED[kind], **SKIPPED_ON_S3[kind]})
    assert len(results) == TESTS[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_the_kit_on_a_folder(stack: SharedStack, kind: Kind, tmp_path: Path) -> None:
    """The same with files on the local disk."""
    with make_lake(stack, str(tmp_path)) as lake:
        results = run(lake, kind, f"file:{tmp_path}/rck", **dict.fromkeys(NO_STORE))
    check_known(results, "failed", {})
    check_known(results, "skipped", SKIPPED[kind])
    assert len(results) == TESTS[kind]

"""Apache Iceberg's own compatibility kit, with the Java client, against the server."""

from pathlib import Path

import pytest

from tests.rck.jars import fetch_kit
from tests.rck.known import FAILED, SKIPPED
from tests.rck.running import Kind, run_kit
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake, make_lake
from tests.support.shared_stack import SharedStack
from tests.support.trino.server import cache_folder

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("rck")]

ICEBERG = "1.11.0"
TESTS: dict[Kind, int] = {"table": 106, "view": 51}
NO_STORE = {"s3_endpoint": None, "s3_access_key_id": None, "s3_secret_access_key": None}


def check_kit(lake: FreshLake, kind: Kind, base: str, **changed: None) -> None:
    """Run a kit: what fails is known by name, and what is known fails."""
    kit = fetch_kit(cache_folder(), ICEBERG)
    with serve(make_settings(lake, allowed_locations=("*",), **changed)) as server:
        results = run_kit(kit, kind, server, lake, base)
    for outcome, known in (("failed", FAILED), ("skipped", SKIPPED)):
        found = {name: result.reason for name, result in results.items() if result.outcome == outcome}
        told = "\n".join(f"{name}: {reason[:300]}" for name, reason in found.items() if name not in known[kind])
        assert set(known[kind]) - set(found) == set(), f"no longer {outcome}; take them out of known.py"
        assert found.keys() <= known[kind].keys(), f"{outcome}:\n{told}"
    assert len(results) == TESTS[kind]


@pytest.mark.parametrize("kind", ["table"])
def test_the_kit_on_s3(stack: SharedStack, kind: Kind) -> None:
    """No test fails but those that are known."""
    with make_lake(stack) as lake:
        check_kit(lake, kind, f"{lake.iceberg_path}rck")


@pytest.mark.parametrize("kind", ["table"])
def test_the_kit_on_a_folder(stack: SharedStack, kind: Kind, tmp_path: Path) -> None:
    """The same with files on the local disk."""
    with make_lake(stack, str(tmp_path)) as lake:
        check_kit(lake, kind, f"file:{tmp_path}/rck", **dict.fromkeys(NO_STORE))

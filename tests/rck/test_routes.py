"""The compatibility kit over a route: the same result as without it, test by test."""

from pathlib import Path

import pytest

from duckicelake.gateway.route import Route
from tests.gateway.fake import routes
from tests.rck.jars import fetch_kit
from tests.rck.known import SKIPPED, SKIPPED_ON_S3
from tests.rck.running import Kind, Result, run_kit
from tests.rck.test_rck import KINDS, TESTS, check_known
from tests.rest.serving import WAREHOUSE, Server, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.reference.server import ICEBERG, serve_reference
from tests.support.trino.server import cache_folder

pytestmark = [pytest.mark.whole, pytest.mark.xdist_group("rck")]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_a_duckicelake_behind_a_route_passes_the_kit(lake: FreshLake, other_lake: FreshLake, kind: Kind) -> None:
    """No test fails, and no more are skipped than without the route."""
    with serve(make_settings(other_lake, allowed_locations=("*",))) as upstream:
        with serve(make_settings(lake, warehouse="own", routes={WAREHOUSE: {"uri": upstream.uri}})) as router:
            results = run_kit(fetch_kit(cache_folder(), ICEBERG), kind, router, other_lake, f"{other_lake.iceberg_path}rck")
    check_known(results, "failed", {})
    check_known(results, "skipped", {**SKIPPED[kind], **SKIPPED_ON_S3[ICEBERG, kind]})
    assert len(results) == TESTS[ICEBERG, kind]


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_icebergs_own_server_gives_the_same_with_and_without_a_route(lake: FreshLake, kind: Kind, tmp_path: Path) -> None:
    """The same tests pass, fail and are skipped, also where that server itself fails."""
    results = [run_against_reference(lake, kind, tmp_path / name, over_route=name == "routed") for name in ("direct", "routed")]
    outcomes = [{name: result.outcome for name, result in each.items()} for each in results]
    assert len(outcomes[0]) == TESTS[ICEBERG, kind]
    assert outcomes[0] == outcomes[1]


def run_against_reference(lake: FreshLake, kind: Kind, folder: Path, *, over_route: bool) -> dict[str, Result]:
    """Run the kit against a new server of Iceberg's own."""
    folder.mkdir()
    kit = fetch_kit(cache_folder(), ICEBERG)
    properties = {"warehouse": f"file:{folder}/warehouse", "unique-table-location": "true"}
    with serve_reference(folder / "log", properties) as reference:
        if not over_route:
            return run_kit(kit, kind, Server(reference.port), lake, f"file:{folder}/rck")
        with routes(Route(WAREHOUSE, reference.uri)) as router:
            return run_kit(kit, kind, router, lake, f"file:{folder}/rck")

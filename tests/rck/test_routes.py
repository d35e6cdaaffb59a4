"""The compatibility kit over a route: the same result as without it, test by test."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from duckicelake.gateway.route import Route
from tests.gateway.fake import routes
from tests.rck.jars import fetch_kit
from tests.rck.known import SKIPPED, SKIPPED_ON_S3
from tests.rck.running import Kind, Result, list_keys, run_kit
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
            kit, keys = fetch_kit(cache_folder(), ICEBERG), list_keys(other_lake.store)
            results = run_kit(kit, kind, router, keys, f"{other_lake.iceberg_path}rck")
    check_known(results, "failed", {})
    check_known(results, "skipped", {**SKIPPED[kind], **SKIPPED_ON_S3[ICEBERG, kind]})
    assert len(results) == TESTS[ICEBERG, kind]


@pytest.mark.long
@pytest.mark.parametrize("store", ["folder", "s3"])
@pytest.mark.parametrize("kind", KINDS)
def test_icebergs_own_server_gives_the_same_with_and_without_a_route(lake: FreshLake, kind: Kind, store: str, tmp_path: Path) -> None:
    """The same tests pass, fail and are skipped, also where that server itself fails."""
    outcomes: list[dict[str, str]] = []
    for name in ("direct", "routed"):
        (folder := tmp_path / name).mkdir()
        properties = {} if store == "folder" else locate_store(lake)
        root = f"file:{folder}" if store == "folder" else f"{lake.iceberg_path}{name}"
        results = run_against_reference(properties, kind, root, folder / "log", over_route=name == "routed")
        outcomes.append({name: result.outcome for name, result in results.items()})
    assert len(outcomes[0]) == TESTS[ICEBERG, kind]
    assert outcomes[0] == outcomes[1]
    assert list(outcomes[0].values()).count("passed") > TESTS[ICEBERG, kind] * 0.9


def locate_store(lake: FreshLake) -> Mapping[str, str]:
    """Return what the reference server and its clients need for the lake's store; that server does not tell its clients."""
    place = {"s3.endpoint": lake.store.endpoint, "s3.path-style-access": "true", "client.region": lake.store.region}
    return {"io-impl": "org.apache.iceberg.aws.s3.S3FileIO", **place, **list_keys(lake.store)}


def run_against_reference(store: Mapping[str, str], kind: Kind, root: str, log: Path, *, over_route: bool) -> dict[str, Result]:
    """Run the kit against a new server of Iceberg's own, whose files lie in `root`."""
    kit = fetch_kit(cache_folder(), ICEBERG)
    with serve_reference(log, {"warehouse": f"{root}/warehouse", "unique-table-location": "true", **store}) as reference:
        if not over_route:
            return run_kit(kit, kind, Server(reference.port), store, f"{root}/rck")
        with routes(Route(WAREHOUSE, reference.uri)) as router:
            return run_kit(kit, kind, router, store, f"{root}/rck")

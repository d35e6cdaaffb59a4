"""`/management/v1/repositories`: a lake with its branches over REST."""

from contextlib import closing

from tests.lake.branches.repository import make_branch, read_head
from tests.rest.serving import make_settings, serve
from tests.support.lakes import FreshLake

PATH = "/management/v1/repositories/lake"


def test_log_and_difference_are_shown_over_rest(lake: FreshLake) -> None:
    """The same documents as on the command line; unknown names are 404, and numbers out of range are refused."""
    lake.duckdb().execute("CREATE TABLE t AS SELECT range AS id FROM range(50)")
    head, dev = read_head(lake), make_branch(lake, "dev")
    with closing(dev.duckdb()) as session:
        session.execute("INSERT INTO t FROM range(100, 200)")
    with serve(make_settings(lake)) as server:
        [newest, *_] = server.get(f"{PATH}/refs/dev/log").json["entries"]
        assert newest["operations"] == [{"operation": "append", "object": "main.t"}]
        [entry] = server.get(f"{PATH}/refs/dev/log?limit=1&before={head + 1}").json["entries"]
        assert entry["snapshot-id"] == head
        compared = server.get(f"{PATH}/diff?from=main&to=dev").json
        assert compared == {
            "namespaces": [],
            "tables": [{"change": "changed", "name": "main.t", "files-added": 1, "rows-added": 100}],
            "views": [],
        }
        assert server.get(f"{PATH}/refs/nothing/log").error == (404, "NotFoundException")
        assert server.get(f"{PATH}/diff?from=main&to=nothing").error == (404, "NotFoundException")
        assert server.get(f"{PATH}/refs/main/log?limit=0").status == 400
        assert server.get(f"{PATH}/diff?from=main").status == 400
        assert server.get("/management/v1/repositories/other/diff?from=main&to=main").error == (404, "NoSuchWarehouseException")

"""What the catalog does not publish: jobs over all tables pass it over, and fail over what somebody has to mend."""

from collections.abc import Callable, Iterable

import pytest

from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.maintain.job import maintain
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies
from tests.pipeline.maintain.keeper import make_desk
from tests.pipeline.profile.measurer import Measurer
from tests.pipeline.publish.press import Press
from tests.pipeline.verify.checker import open_checker
from tests.support.readers import Served
from tests.support.spark import Spark
from tests.support.tiers import long_but

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("pipeline")]

UNREAL = "a\x01b"
TOLD = {
    "main.big": (Verdict.skipped, "Column 'n'"),
    f"main.{UNREAL}": (Verdict.skipped, "Rename it with DuckDB"),
    "main.torn": (Verdict.failed, "has no column_type"),
}

Told = Iterable[tuple[str, Verdict, str]]


def maintaining(served: Served, _: Spark) -> Callable[[], Told]:
    """Dry runs of `maintain`."""
    desk, options = make_desk(served, list[str]().append), MaintainOptions(policies=MaintainPolicies({}))
    return lambda: [(step.subject, step.verdict, step.message) for step in maintain(desk, options, dry_run=True).steps]


def profiling(served: Served, spark: Spark) -> Callable[[], Told]:
    """Dry runs of `profile`."""
    measurer = Measurer(open_checker(served, spark))
    return lambda: [(one.table, one.verdict, one.message) for one in measurer.run(dry_run=True).tables]


def publishing(served: Served, spark: Spark) -> Callable[[], Told]:
    """Dry runs of `publish`."""
    press = Press(served, spark)
    return lambda: [(one.table, one.verdict, one.message) for one in press.run(dry_run=True, spark=False).tables]


@pytest.mark.parametrize("get_ready", long_but([maintaining, profiling, publishing], maintaining))
def test_what_is_not_published_is_passed_over_and_damage_is_not(
    served: Served, spark: Spark, get_ready: Callable[[Served, Spark], Callable[[], Told]]
) -> None:
    """A type that Iceberg has not, a name that no request can have, rows that no DuckLake writes."""
    duck, look = served.lake.duckdb(), get_ready(served, spark)
    for name, value in (("big", "1::UBIGINT"), (UNREAL, "1"), ("torn", "1"), ("whole", "1")):
        duck.execute(f'CREATE TABLE "{name}" AS SELECT {value} AS n FROM range(100)')
    torn = "UPDATE ducklake_column c SET column_type = NULL FROM ducklake_table t WHERE t.table_id = c.table_id AND table_name = 'torn'"
    with served.lake.psycopg() as conn:
        conn.execute(torn)
    told = {table: (verdict, said) for table, verdict, said in look()}
    for table, (verdict, said) in TOLD.items():
        assert told[table][0] is verdict, told
        assert said in told[table][1]
    assert all(verdict in (Verdict.planned, Verdict.nothing) for table, (verdict, _) in told.items() if table not in TOLD), told

"""Policies: what is said nearest to a table counts, and what cannot be meant is refused by name."""

import math
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.errors import BadRequest
from duckicelake.pipeline.common.spark_sql import SortTerm
from duckicelake.pipeline.maintain.compaction import format_options
from duckicelake.pipeline.maintain.planning import LakeSnapshot, Step, StepKind, TableFacts, plan_expiry
from duckicelake.pipeline.maintain.policy import MaintainOptions, MaintainPolicies, Policy, Strategy, parse_age, parse_policies, parse_size

FILE = """
[default]
target-size = "256MB"
snapshot-age = "30 days"
orphan-age = "72h"

[tables."raw.trips"]
strategy = "zorder"
order = "pickup, dropoff"
snapshot-count = 3
"""


def test_the_nearest_word_counts() -> None:
    """A table's section of the file, over its own properties (ours over Iceberg's), over the section for all, over the defaults."""
    policies = parse_policies(FILE)
    assert (policies.lake.target_size, policies.lake.orphan_age, policies.lake.min_files) == (256 << 20, timedelta(hours=72), 5)
    properties = {
        "write.target-file-size-bytes": "1000",
        "history.expire.max-snapshot-age-ms": "60000",
        "history.expire.min-snapshots-to-keep": "9",
        "duckicelake.maintain.target-size": "2k",
        "duckicelake.maintain.enabled": "false",
        "other": "x",
    }
    trips, other = policies.find("raw.trips", properties), policies.find("raw.other", properties)
    assert (other.target_size, other.snapshot_age, other.snapshot_count, other.enabled) == (2048, timedelta(minutes=1), 9, False)
    assert (trips.strategy, trips.order, trips.snapshot_count) == (Strategy.zorder, (SortTerm("pickup"), SortTerm("dropoff")), 3)
    assert MaintainPolicies().find("a.b", {}) == Policy()


@pytest.mark.parametrize(
    ("sections", "table", "files"),
    [
        pytest.param(("RAW.Small",), "raw.small", 9, id="case"),
        pytest.param(("RAW.Small", "raw.small"), "raw.small", 10, id="exact"),
        pytest.param(("raw.small", "RAW.Small"), "raw.small", 9, id="exact first"),
        pytest.param(("raw.ä",), "raw.Ä", 5, id="other letters"),
        pytest.param(('"Raw"."Small.x"',), 'raw."small.x"', 9, id="quoted"),
        pytest.param(('"RAW"."Small"',), "raw.small", 9, id="quoted for nothing"),
        pytest.param(("raw",), "raw.small", 5, id="no table's name"),
    ],
)
def test_sections_name_tables_in_any_case(sections: tuple[str, ...], table: str, files: int) -> None:
    """As DuckDB does, and the exact spelling before others."""
    policies = MaintainPolicies(tables={name: {"min-files": 9 + place} for place, name in enumerate(sections)})
    assert policies.find(table, {}).min_files == files
    taken = {name for place, name in enumerate(sections) if 9 + place == files}
    assert policies.list_unknown([table]) == sorted({*sections} - taken)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("x", "no TOML", id="syntax"),
        pytest.param("[table]", "section table", id="section"),
        pytest.param("default = 1", "are sections", id="no section"),
        pytest.param("[default]\nsize = 1", r"\[default\]: size is none of enabled", id="word"),
        pytest.param("[default]\nsnapshot-age = 7", "7 is no age|'7' is no age", id="age"),
        pytest.param("[default]\nfile-age = 'never'", "file-age is an age", id="never"),
        pytest.param("[default]\norphan-age = '59m'", "orphan-age is at least 1h", id="orphans"),
        pytest.param("[default]\nmin-files = 1", "min-files at 2", id="files"),
        pytest.param("[default]\nsmall-file-ratio = 1", "small-file-ratio lies", id="ratio"),
        pytest.param("[default]\ndelete-ratio = 'many'", "'many' is no number", id="number"),
        pytest.param("[default]\ndelete-ratio = true", "'True' is no number", id="truth as number"),
        pytest.param("[default]\nmin-files = true", "'True' is no whole number", id="truth as count"),
        pytest.param("[default]\nmin-files = 5.9", "'5.9' is no whole number", id="part"),
        pytest.param("[default]\nflush-rows = 2147483648", "is above 2147483647", id="count"),
        pytest.param(f"[default]\nflush-rows = {'9' * 5000}", "no TOML", id="digits"),
        pytest.param("[default]\norder = ['a']", "order is a text, a number", id="list"),
        pytest.param("[default]\nsnapshot-age = '1001 years'", "is no age", id="years"),
        pytest.param("[default]\nsnapshot-age = '400000 days'", "longer than 1000 years: write never", id="endless"),
        pytest.param("[default]\ntarget-size = '2000000t'", "is no size of a file", id="huge"),
        pytest.param("[tables.'a.b']\norphan-age = '2h'", "orphan-age concerns the whole lake and belongs in .default.", id="lake"),
        pytest.param("[default]\nstrategy = 'hilbert'", "none of binpack, sort, zorder", id="strategy"),
        pytest.param("[tables.'a.b']\nstrategy = 'zorder'", 'tables."a.b".: strategy zorder needs', id="order"),
        pytest.param("[tables.'a.b']\nenabled = 'perhaps'", "neither true nor false", id="truth"),
        pytest.param("[tables.'a.b']\ntarget-size = '1 mile'", "is no size", id="size"),
    ],
)
def test_what_cannot_be_meant_is_refused(text: str, message: str) -> None:
    """When the file is read, before anything is looked at."""
    with pytest.raises(BadRequest, match=message):
        parse_policies(text)


@pytest.mark.parametrize(
    ("text", "age"),
    [
        ("0s", timedelta()),
        ("1.5h", timedelta(minutes=90)),
        ("36 hours", timedelta(hours=36)),
        ("7 days", timedelta(days=7)),
        ("2w", timedelta(days=14)),
        ("5 min", timedelta(minutes=5)),
        ("3secs", timedelta(seconds=3)),
        ("1 week", timedelta(days=7)),
        ("Never", None),
    ],
)
def test_ages(text: str, age: timedelta | None) -> None:
    """A number and a unit."""
    assert parse_age(text) == age


@pytest.mark.parametrize(
    "text",
    [
        "6M",
        "7 says",
        "5 hays",
        "3 wins",
        "2 Days",
        "5 minute s",
        "²s",
        "٣d",
        "1e3s",
        "-1s",
        "s",
        pytest.param("1" * 5000 + "s", id="digits"),
    ],
)
def test_what_is_no_age_is_refused(text: str) -> None:
    """Months, slips of the pen, digits of other scripts."""
    with pytest.raises(BadRequest):
        parse_age(text)


@pytest.mark.parametrize(
    ("age_ms", "age"),
    [
        ("0", timedelta()),
        (" 60000 ", timedelta(minutes=1)),
        ("90000000000000", None),
        ("9223372036854775807", None),
        pytest.param("9" * 6000, None, id="digits"),
        pytest.param("0" * 6000 + "1000", timedelta(seconds=1), id="zeros"),
    ],
)
def test_an_age_of_iceberg_may_be_endless(age_ms: str, age: timedelta | None) -> None:
    """Java's largest number says never, whatever [default] says."""
    properties = {"history.expire.max-snapshot-age-ms": age_ms}
    assert MaintainPolicies({"snapshot-age": "1d"}).find("a.b", properties).snapshot_age == age


@pytest.mark.parametrize("name", ["keep-refs", "file-age", "orphan-age"])
def test_a_table_says_nothing_of_the_lake(name: str) -> None:
    """Neither in a property."""
    with pytest.raises(BadRequest, match=f"a.b's properties: {name} concerns the whole lake"):
        MaintainPolicies().find("a.b", {f"duckicelake.maintain.{name}": "true"})


NAMES = st.sampled_from(
    [
        "history.expire.max-snapshot-age-ms",
        "history.expire.min-snapshots-to-keep",
        "write.target-file-size-bytes",
        *(f"duckicelake.maintain.{name}" for name in ("enabled", "target-size", "small-file-ratio", "min-files", "delete-ratio")),
        *(f"duckicelake.maintain.{name}" for name in ("flush-rows", "strategy", "order", "snapshot-age", "snapshot-count", "x")),
    ]
)
TEXTS = st.one_of(
    st.text(max_size=8), st.from_regex(r"\A[0-9²٣.eE-]{0,30} ?[smhdwMkKgt]?\Z"), st.sampled_from(["²", "9" * 6000, "nan", "inf"])
)


@given(st.dictionaries(NAMES, TEXTS, max_size=3))
def test_no_property_stops_the_lake(properties: dict[str, str]) -> None:
    """Whatever somebody writes there, it is a policy to work with, or refused."""
    try:
        policy = MaintainPolicies().find("a.b", properties)
    except BadRequest as error:
        assert len(error.message) < 500
        return
    now = datetime(2026, 3, 1, tzinfo=UTC)
    step = plan_expiry([LakeSnapshot(number, now, frozenset({1})) for number in range(2)], frozenset(), {1: policy}, Policy(), now)
    assert step is None or step.versions == (0,)
    assert format_options(policy, TableFacts(), Step(StepKind.compact, ""))["target-file-size-bytes"] == str(policy.target_size)


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 0.5, 1e12])
def test_a_service_waits_a_time_that_there_is(seconds: float) -> None:
    """Neither never nor for ever."""
    with pytest.raises(BadRequest, match="--watch begins at 1 second"):
        MaintainOptions(watch_seconds=seconds)


@pytest.mark.parametrize(("text", "size"), [(17, 17), ("17", 17), ("3 KiB", 3072), ("128MB", 128 << 20), ("2g", 2 << 30)])
def test_sizes(text: int | str, size: int) -> None:
    """Bytes, or a number and a unit."""
    assert parse_size(text) == size

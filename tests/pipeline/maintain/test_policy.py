"""Policies: what is said nearest to a table counts, and what cannot be meant is refused by name."""

from datetime import timedelta

import pytest

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.target import SortField
from duckicelake.pipeline.maintain.policy import Policies, Policy, Strategy, parse_age, parse_policies, parse_size

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
    assert (trips.strategy, trips.order, trips.snapshot_count) == (Strategy.zorder, (SortField("pickup"), SortField("dropoff")), 3)
    assert Policies().find("a.b", {}) == Policy()


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
        pytest.param("[default]\ndelete-ratio = 'many'", "could not convert", id="number"),
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
        ("Never", None),
    ],
)
def test_ages(text: str, age: timedelta | None) -> None:
    """A number and a unit."""
    assert parse_age(text) == age


@pytest.mark.parametrize(("text", "size"), [(17, 17), ("17", 17), ("3 KiB", 3072), ("128MB", 128 << 20), ("2g", 2 << 30)])
def test_sizes(text: int | str, size: int) -> None:
    """Bytes, or a number and a unit."""
    assert parse_size(text) == size

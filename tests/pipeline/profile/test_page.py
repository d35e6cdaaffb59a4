"""The page: well-formed, self-contained, and no name is markup."""

import xml.etree.ElementTree as ET
from itertools import pairwise

import pytest

from duckicelake.pipeline.common.reports import Verdict
from duckicelake.pipeline.profile_report import (
    POINTS,
    ColumnProfile,
    Point,
    ProfileReport,
    SizeClass,
    TableProfile,
    find_state,
    format_bytes,
    format_page,
    plot_growth,
    plot_sizes,
    thin,
)

EVIL = """<script>alert('1')</script>"&{run_id}%s"""
GROWTH = tuple(Point(1_700_000_000_000 + day * 86_400_000, day, 10 * day, day, 1000 * day) for day in (1, 2, 5))
SIZES = (SizeClass(10, 4, 5000, 40), SizeClass(13, 2, 20000, 90))


def make_table(name: str = EVIL) -> TableProfile:
    """A profile whose every text is markup."""
    columns = (ColumnProfile(1, name, name, 7, 0, name, name, 2048), ColumnProfile(2, "b", "list"))
    told = {"snapshot_id": 5, "total": GROWTH[-1], "columns": columns, "sizes": SIZES, "growth": GROWTH}
    return TableProfile(name, Verdict.failed, reason=name, message=name, **told)


def parse(page: str) -> ET.Element:
    """The page as a tree: every tag is closed."""
    body = page.removeprefix("<!DOCTYPE html>\n")
    return ET.fromstring(
        body.replace('<meta charset="utf-8">', "").replace("style-src 'unsafe-inline'\">", "style-src 'unsafe-inline'\"/>")
    )


def test_no_name_is_markup() -> None:
    """A table, a column, a value, a reason: all of them are text, exactly as they are."""
    tree = parse(format_page(ProfileReport(EVIL, EVIL, (make_table(),), versions={EVIL: EVIL})))
    assert list(tree.iter("script")) == []
    texts = ["".join(cell.itertext()) for cell in tree.iter("td")]
    assert texts.count(EVIL) >= 5
    assert ["".join(one.itertext()) for one in tree.iter("h2")] == [EVIL]


def test_the_page_asks_for_nothing() -> None:
    """No address is in it but of its own sections; the policy of the page forbids more."""
    page = format_page(ProfileReport("1", "now", (make_table("main.t"),)))
    tree = parse(page)
    assert [one.attrib for one in tree.iter() if {"src", "href", "srcset", "action", "data"} & one.attrib.keys()] == [{"href": "#t0"}]
    assert "http" not in page.replace("http-equiv", "")
    assert "url(" not in page
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_each_size_has_its_bar() -> None:
    """From the smallest to the largest, those without files too, high as there are many."""
    tree = ET.fromstring(plot_sizes(SIZES))
    heights = [float(bar.attrib["height"]) for bar in tree.iter("rect")]
    assert (len(heights), heights[1:3]) == (4, [0.0, 0.0])
    assert heights[0] == pytest.approx(2 * heights[3])
    assert [title.text for title in tree.iter("title")][0] == "4 files from 1 KiB to 2 KiB"


def test_a_line_stays_until_the_next_snapshot() -> None:
    """Along, then up: by time, not by number."""
    [ground, line] = ET.fromstring(plot_growth("Rows", GROWTH, lambda point: point.rows, str)).iter("path")
    assert line.attrib["d"] == "M22.0,98.8H101.0V79.6H338.0V22.0"
    assert ground.attrib["class"] == "ground"


def test_a_table_that_was_rolled_back_grows_again() -> None:
    """It is as big as it was at the older snapshot from when it went back there, not from when that was made."""
    snapshots = [{"snapshot-id": n, "timestamp-ms": 1000 * n, "summary": {"total-records": str(10 * n)}} for n in (1, 2, 3)]
    log = [{"snapshot-id": n, "timestamp-ms": at} for n, at in ((1, 1000), (2, 2000), (3, 3000), (1, 4000), (9, 5000))]
    state = find_state({"current-snapshot-id": 1, "snapshots": snapshots, "snapshot-log": log})
    assert state is not None
    assert [(one.at_ms, one.rows) for one in state.list_growth()] == [(1000, 10), (2000, 20), (3000, 30), (4000, 10)]


@pytest.mark.parametrize(
    "points", [pytest.param((), id="none"), pytest.param(GROWTH[:1], id="one"), pytest.param((Point(1, 1, 0, 0, 0),) * 2, id="zero")]
)
def test_little_growth_is_drawn(points: tuple[Point, ...]) -> None:
    """Nothing, a dot, a flat line: never a division by nothing."""
    drawn = plot_growth("Rows", points, lambda point: point.rows, str)
    assert bool(drawn) == bool(points)
    assert "nan" not in drawn


def test_many_snapshots_are_thinned() -> None:
    """First and last stay, in order."""
    points = tuple(Point(number, number, number, number, number) for number in range(10_000))
    kept = thin(points)
    assert (len(kept), kept[0], kept[-1]) == (POINTS, points[0], points[-1])
    assert all(one.at_ms < other.at_ms for one, other in pairwise(kept))


@pytest.mark.parametrize(
    ("count", "shown"),
    [(0, "0 B"), (1, "1 B"), (1023, "1023 B"), (1024, "1 KiB"), (1536, "1.5 KiB"), (1 << 30, "1 GiB"), (1 << 70, "1024 EiB")],
)
def test_bytes_are_shown_short(count: int, shown: str) -> None:
    """With the unit that leaves the fewest digits."""
    assert format_bytes(count) == shown

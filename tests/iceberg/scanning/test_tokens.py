"""Plan ids and plan tasks: read as they were written, and no other text is one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.iceberg.scan_tasks import (
    WHOLE_SCAN,
    InvalidToken,
    PinnedScan,
    ScanSpan,
    encode_scan,
    format_plan_id,
    format_task,
    parse_plan_id,
    parse_task,
)

PINNED = PinnedScan("u", 7, None, "snap-7-a.avro", 1, {"type": "eq", "term": "ü", "value": 2**70}, True, (1, 2), 5)
NUMBERS = st.integers(0, 2**32 - 1)


@given(span=st.builds(ScanSpan, NUMBERS, NUMBERS, NUMBERS, NUMBERS), start=st.none() | st.integers(0, 2**63 - 1))
def test_a_task_is_read_as_it_was_written(span: ScanSpan, start: int | None) -> None:
    """Every part of it."""
    pinned = PinnedScan("u", 2**63 - 1, start, "", 0, None, False)
    assert parse_task(format_task(encode_scan(pinned), span)) == (pinned, span)


def test_an_id_is_read_as_it_was_written() -> None:
    """And fits a path; that of a large filter only names its plan."""
    packed = encode_scan(PINNED)
    assert parse_plan_id(format_plan_id(packed)) == PINNED
    large = PinnedScan("u", 7, None, "", 1, [str(number * 7919) for number in range(5000)], True)
    assert parse_plan_id(format_plan_id(encode_scan(large))) is None
    assert len(format_plan_id(encode_scan(large))) < 100


@given(place=st.integers(0, 200), other=st.characters(max_codepoint=300))
def test_a_damaged_task_is_none(place: int, other: str) -> None:
    """Wherever one character is another."""
    token = format_task(encode_scan(PINNED), WHOLE_SCAN)
    place %= len(token) - 1
    damaged = token[:place] + other + token[place + 1 :]
    if damaged != token:
        with pytest.raises(InvalidToken):
            parse_task(damaged)


@given(text=st.text(max_size=100))
def test_no_other_text_is_a_token(text: str) -> None:
    """Nor is a token of the other kind."""
    for parse in (parse_plan_id, parse_task):
        with pytest.raises(InvalidToken):
            parse(text)
    with pytest.raises(InvalidToken):
        parse_plan_id(format_task(encode_scan(PINNED), WHOLE_SCAN))
    with pytest.raises(InvalidToken):
        parse_task(format_plan_id(encode_scan(PINNED)))

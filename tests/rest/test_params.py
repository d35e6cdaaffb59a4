"""Names and pages: decoded strictly, and what was encoded comes back."""

from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duckicelake.catalog.manifest_import.operations import SubmittedManifest
from duckicelake.errors import BadRequest
from duckicelake.iceberg.requests.bodies import MAX_NAME_BYTES, check_name
from duckicelake.rest.params import (
    SEPARATOR,
    PageRequest,
    cut_page,
    decode_page_token,
    decode_segment,
    encode_page_token,
    split_levels,
)
from duckicelake.rest.routes.manifests import parse_offered
from duckicelake.translate.locations import format_manifest_name

NAMES = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=50)
LEVELS = st.lists(NAMES, min_size=1, max_size=4).map(tuple[str, ...])


@given(NAMES)
def test_a_name_survives_either_way_of_encoding_it(name: str) -> None:
    """PyIceberg writes %20 for a space and Java's client +; a plus sign is %2B in both."""
    assert decode_segment(quote(name, safe=""), "table") == name
    assert decode_segment(quote_plus(name), "table") == name


@given(LEVELS)
def test_levels_survive(levels: tuple[str, ...]) -> None:
    """A namespace is its levels joined by the unit separator, encoded level by level."""
    segment = "%1F".join(quote(level, safe="") for level in levels)
    assert split_levels(decode_segment(segment, "namespace")) == levels


@pytest.mark.parametrize("segment", ["%FF", "%C3", "a%C0%AF", "%ED%A0%80", "\xff"])
def test_bytes_that_are_not_utf8_are_refused(segment: str) -> None:
    """Broken, overlong and surrogate sequences never become some other name."""
    with pytest.raises(BadRequest, match="UTF-8"):
        decode_segment(segment, "table")


@pytest.mark.parametrize("segment", ["%", "a%2", "%zz", "%%41"])
def test_broken_escapes_are_refused(segment: str) -> None:
    """A percent sign must start an escape."""
    with pytest.raises(BadRequest, match="percent"):
        decode_segment(segment, "table")


@pytest.mark.parametrize("name", ["", "a\x00b", "a\nb", "\x7f", "\x85", "a\x1fb", "ü" * (MAX_NAME_BYTES // 2 + 1)])
def test_what_is_no_name_is_refused(name: str) -> None:
    """Empty names, control characters, and more bytes than an S3 key can have."""
    with pytest.raises(BadRequest):
        check_name(name, "table")


@pytest.mark.parametrize("name", [" ", ".", "..", "a.b", "a/b", "SELECT", '"', "%41", "ü" * (MAX_NAME_BYTES // 2)])
def test_odd_names_are_names(name: str) -> None:
    """A name means no path, no keyword and no escape here."""
    assert check_name(name, "table") == name


@pytest.mark.parametrize("text", [SEPARATOR, f"a{SEPARATOR}", f"a{SEPARATOR}{SEPARATOR}b", "a\x00"])
def test_every_level_is_a_name(text: str) -> None:
    """An empty level is refused, at either end and between."""
    with pytest.raises(BadRequest):
        split_levels(text)


@given(LEVELS)
def test_a_page_token_gives_its_name_back(last: tuple[str, ...]) -> None:
    """What a list gave out it also takes."""
    assert decode_page_token(encode_page_token(last)) == last


@pytest.mark.parametrize("token", ["1", "é", "////", "a" * 5, "_w==", " "])
def test_foreign_page_tokens_are_refused(token: str) -> None:
    """A token of another catalog is a bad request, not a silent first page."""
    with pytest.raises(BadRequest, match="pageToken"):
        decode_page_token(token)


def read_pages(rows: set[tuple[str, ...]], size: int) -> list[tuple[str, ...]]:
    """All rows, page by page."""
    seen: list[tuple[str, ...]] = []
    cut, token = cut_page(rows, tuple[str, ...], PageRequest(None, size))
    seen += cut
    while token is not None:
        assert len(cut) == size
        assert len(seen) <= len(rows)
        cut, token = cut_page(rows, tuple[str, ...], PageRequest(decode_page_token(token), size))
        seen += cut
    return seen


@given(st.sets(LEVELS, max_size=20), st.integers(1, 30))
def test_pages_add_up_to_the_whole(rows: set[tuple[str, ...]], size: int) -> None:
    """Every row once, in order, and no token after the last page."""
    assert read_pages(rows, size) == sorted(rows)


@given(st.sets(LEVELS, max_size=20))
def test_without_a_size_there_is_one_page(rows: set[tuple[str, ...]]) -> None:
    """Java sends `pageToken=` and no size, and expects everything."""
    assert cut_page(rows, tuple[str, ...], PageRequest(None, None)) == (sorted(rows), None)


def test_pages_stay_right_while_rows_come_and_go() -> None:
    """A token names the last row seen: what stays is seen exactly once, though rows before and after it change."""
    first, token = cut_page({("a",), ("c",), ("e",), ("g",)}, tuple[str, ...], PageRequest(None, 2))
    assert token is not None
    rest, end = cut_page({("b",), ("e",), ("f",), ("g",)}, tuple[str, ...], PageRequest(decode_page_token(token), 5))
    assert (first, rest, end) == ([("a",), ("c",)], [("e",), ("f",), ("g",)], None)


def test_an_absurd_page_size_is_just_everything() -> None:
    """No size is too large to ask for."""
    assert cut_page({("a",)}, tuple[str, ...], PageRequest(None, 10**30)) == ([("a",)], None)


def test_a_submitted_manifest_has_the_name_of_a_published_one() -> None:
    """A UUID; other names, which could lead to another object, are refused."""
    name = format_manifest_name(b"manifest")
    assert parse_offered({"digest": "0a", "name": name}) == ("0a", SubmittedManifest(name, None))
    for wrong in ("", "0a", f"{name}/x", f"../{name}", name.upper(), name.replace("-", "")):
        with pytest.raises(BadRequest):
            parse_offered({"digest": "0a", "name": wrong})

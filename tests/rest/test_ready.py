"""Ready answers: tags, 304 and gzip; and the cache that keeps them."""

import asyncio
import gzip

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import Message

from duckicelake.catalog.records.reads import ReadAnswer
from duckicelake.catalog.tables import Position
from duckicelake.config import Settings
from duckicelake.rest.cached_response import (
    ENTRY_BYTES,
    GZIP_FROM_BYTES,
    CachedLoad,
    ResponseCache,
    accepts_gzip,
    build_cached_response,
    build_etag,
    matches_etag,
)
from duckicelake.rest.routes.tables import MAX_JOINED_BYTES, MultipartBodyResponse

LONG = b'{"metadata":"' + b"x" * GZIP_FROM_BYTES + b'"}'


@given(st.binary(), st.binary())
def test_different_bodies_have_different_tags(one: bytes, other: bytes) -> None:
    """A tag stands for exactly one body, whatever shape it has."""
    assert (build_etag(one) == build_etag(other)) == (one == other)


@pytest.mark.parametrize(
    "header",
    [
        pytest.param(lambda tag: tag, id="as it was sent"),
        pytest.param(lambda tag: tag.removeprefix(b"W/"), id="strong"),
        pytest.param(lambda tag: b'"a" , ' + tag + b',W/"b"', id="in a list"),
        pytest.param(lambda tag: b"*", id="any"),
    ],
)
def test_a_tag_is_recognised(header) -> None:
    """If-None-Match compares weakly (RFC 9110, 13.1.2)."""
    tag = build_etag(b"body")
    assert matches_etag(header(tag), tag)


@pytest.mark.parametrize("header", [b"", b'""', b'W/"other"', b"**", b"W/"])
def test_another_tag_is_not(header: bytes) -> None:
    """Only the tag itself, a list with it, or `*` matches."""
    assert not matches_etag(header, build_etag(b"body"))


def test_an_unchanged_answer_has_no_body_and_the_tag() -> None:
    """304 carries the same tag and nothing else to read."""
    answer = build_cached_response(b"{}")
    status, headers, body = answer.choose(answer.etag, None)
    assert (status, body) == (304, b"")
    assert dict(headers)[b"etag"] == answer.etag
    assert b"content-length" not in dict(headers)


def test_a_long_body_is_kept_compressed_for_those_who_take_it() -> None:
    """The compressed body is the same body, under the same tag, with its own length."""
    answer = build_cached_response(LONG)
    status, headers, body = answer.choose(None, b"gzip, deflate")
    assert status == 200
    assert gzip.decompress(body) == LONG
    assert dict(headers)[b"content-encoding"] == b"gzip"
    assert dict(headers)[b"content-length"] == b"%d" % len(body)
    assert dict(headers)[b"etag"] == answer.etag
    assert dict(headers)[b"vary"] == b"accept-encoding"
    assert answer.choose(None, None)[2] == answer.choose(None, b"gzip;q=0")[2] == LONG


def test_a_short_body_is_never_compressed() -> None:
    """Compressing it would cost more than sending it."""
    assert build_cached_response(b"{}").choose(None, b"gzip")[2] == b"{}"
    assert build_cached_response(LONG, is_kept=False).choose(None, b"gzip")[2] == LONG


@pytest.mark.parametrize(
    ("size_bytes", "messages"), [pytest.param(10, 1, id="short: in one piece"), pytest.param(MAX_JOINED_BYTES, 3, id="long: in its parts")]
)
def test_an_answer_in_parts_is_the_whole_one(size_bytes: int, messages: int) -> None:
    """The parts are its body, its length and tag are theirs, and only the last one ends it."""
    parts, sent = [b'{"metadata":"', b"x" * size_bytes, b'"}'], list[Message]()

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    asyncio.run(MultipartBodyResponse(parts, [b"digest"])({"type": "http"}, receive, send))
    start, *bodies = sent
    assert [message.get("more_body", False) for message in bodies] == [True] * (messages - 1) + [False]
    assert b"".join(message["body"] for message in bodies) == (body := b"".join(parts))
    assert (start["status"], start["headers"]) == (200, build_cached_response(body, is_kept=False, tagged=[b"digest"]).headers)


@pytest.mark.parametrize(
    ("header", "taken"),
    [
        (b"gzip", True),
        (b"GZIP", True),
        (b"deflate, gzip;q=0.5", True),
        (b"*", True),
        (b"", False),
        (b"identity", False),
        (b"gzip;q=0", False),
        (b"gzip; q=0.000", False),
        (b"gzip;q=0, *", False),
        (b"*;q=0", False),
        (b"x-gzipped", False),
    ],
)
def test_gzip_is_sent_only_to_those_who_take_it(header: bytes, taken: bool) -> None:
    """Accept-Encoding with weights (RFC 9110, 12.5.3)."""
    assert accepts_gzip(header) == taken


def make_entry(body: bytes) -> CachedLoad:
    """An entry of one table at one position."""
    return CachedLoad("lake", 1, Position(1, 0), build_cached_response(body), ReadAnswer())


def test_the_least_recently_used_entry_leaves_first() -> None:
    """Finding an entry makes it young again."""
    cache = ResponseCache(max_bytes=2 * (ENTRY_BYTES + 1))
    for name in (b"a", b"b"):
        cache.put((name, "all"), make_entry(name))
    assert cache.find((b"a", "all")) is not None
    cache.put((b"c", "all"), make_entry(b"c"))
    assert [name for name in (b"a", b"b", b"c") if cache.find((name, "all"))] == [b"a", b"c"]


def test_the_cache_is_bounded_in_bytes() -> None:
    """Large entries push out as many as they need; one larger than the cache is not kept, pushes out none, and ends its older self."""
    small, large = 40, ENTRY_BYTES + 60
    cache = ResponseCache(max_bytes=2 * (ENTRY_BYTES + small))
    cache.put((b"a", "all"), make_entry(b"a" * small))
    cache.put((b"b", "all"), make_entry(b"b" * small))
    assert (len(cache), cache.size_bytes) == (2, 2 * (ENTRY_BYTES + small))
    cache.put((b"c", "all"), make_entry(b"c" * large))
    assert (len(cache), cache.size_bytes) == (1, ENTRY_BYTES + large)
    cache.put((b"d", "all"), make_entry(b"d" * (large + 21)))
    assert (len(cache), cache.size_bytes) == (1, ENTRY_BYTES + large)
    cache.put((b"c", "all"), make_entry(b"c" * (large + 21)))
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_small_entries_are_bounded_in_bytes_alone() -> None:
    """A default server keeps the answers of far more than a thousand small tables."""
    cache = ResponseCache(Settings.model_fields["cache_max_bytes"].default)
    answer = build_cached_response(b"a" * 3000)
    for number in range(10_000):
        cache.put((b"%d" % number, "all"), CachedLoad("lake", number, Position(1, 0), answer, ReadAnswer()))
    assert len(cache) == 10_000


def test_an_entry_takes_the_place_of_its_older_self() -> None:
    """Filling again under one key keeps one entry and its bytes."""
    cache = ResponseCache(max_bytes=10 * ENTRY_BYTES)
    cache.put((b"a", "all"), make_entry(b"old"))
    cache.put((b"a", "all"), make_entry(b"newer"))
    found = cache.find((b"a", "all"))
    assert found is not None
    assert (found.answer.body, len(cache), cache.size_bytes) == (b"newer", 1, ENTRY_BYTES + 5)


def test_a_cache_of_nothing_keeps_nothing() -> None:
    """Zero bytes switch the cache off."""
    cache = ResponseCache(max_bytes=0)
    cache.put((b"a", "all"), make_entry(b"a"))
    assert cache.find((b"a", "all")) is None

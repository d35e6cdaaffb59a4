"""Path and query parameters: namespaces, names and pages, decoded strictly.

FastAPI and `CommitFastPath` call the async functions on the event loop; layers and handlers call the others, on any thread. No I/O.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Query, Request

from duckicelake.errors import BadRequest
from duckicelake.iceberg.requests.bodies import check_name

SEPARATOR = "\x1f"
ADVERTISED_SEPARATOR = "%1F"
BROKEN_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")

Row = TypeVar("Row")


def decode_segment(segment: str, what: str) -> str:
    """Return the text of a percent-encoded path segment; `+` is a space, as Java's and Trino's clients encode it.

    Raises: BadRequest: broken escapes, or bytes that are not UTF-8
    """
    if segment.isascii() and "%" not in segment and "+" not in segment:
        return segment
    if BROKEN_ESCAPE.search(segment):
        raise BadRequest(f"The {what} in the path has a broken percent escape.")
    try:
        return unquote_to_bytes(segment.replace("+", " ").encode("latin-1")).decode()
    except UnicodeError as error:
        raise BadRequest(f"The {what} in the path is not UTF-8.") from error


def split_levels(text: str) -> tuple[str, ...]:
    """Return the levels of a decoded namespace, outermost first.

    Raises: BadRequest: a level is not a valid name
    """
    return tuple(check_name(level, "namespace") for level in text.split(SEPARATOR))


async def read_levels(
    namespace: Annotated[str, Path(description=f"The namespace's levels, joined by `{ADVERTISED_SEPARATOR}`.")],
) -> tuple[str, ...]:
    """Return the path's namespace."""
    return split_levels(decode_segment(namespace, "namespace"))


async def read_table_name(table: Annotated[str, Path(description="The table's name.")]) -> str:
    """Return the path's table."""
    return check_name(decode_segment(table, "table"), "table")


async def read_view_name(view: Annotated[str, Path(description="The view's name.")]) -> str:
    """Return the path's view."""
    return check_name(decode_segment(view, "view"), "view")


async def read_function_name(function: Annotated[str, Path(description="The function's name.")]) -> str:
    """Return the path's function."""
    return check_name(decode_segment(function, "function"), "function")


async def check_query(request: Request) -> None:
    """Refuse a query string that is not UTF-8; Starlette would replace the invalid bytes in names.

    Raises: BadRequest: the query is not UTF-8
    """
    query: bytes = request.scope["query_string"]
    try:
        unquote_to_bytes(query).decode()
    except UnicodeError as error:
        raise BadRequest("The query is not UTF-8.") from error


@dataclass(frozen=True, slots=True)
class PageRequest:
    """The requested part of a list: at most `size` rows that follow the name `after`. `size` None: all rows."""

    after: tuple[str, ...] | None
    size: int | None


async def read_page(
    page_token: Annotated[str, Query(alias="pageToken", description="Where the previous page ended; empty: the first page.")] = "",
    page_size: Annotated[int | None, Query(alias="pageSize", ge=1, description="At most so many; absent: all.")] = None,
) -> PageRequest:
    """Return the page that the query requests."""
    return PageRequest(decode_page_token(page_token) if page_token else None, page_size)


def encode_page_token(last: tuple[str, ...]) -> str:
    """Return a token that holds the last name of a page, so that the next page is right even if rows are added or removed meanwhile."""
    return base64.urlsafe_b64encode(SEPARATOR.join(last).encode()).decode()


def decode_page_token(token: str) -> tuple[str, ...]:
    """Return the name that a page token holds.

    Raises: BadRequest: this server did not issue the token
    """
    try:
        return tuple(base64.b64decode(token.encode("ascii"), b"-_", validate=True).decode().split(SEPARATOR))
    except (binascii.Error, UnicodeError) as error:
        raise BadRequest("The pageToken is not one that this catalog gave out.") from error


def cut_page(rows: Iterable[Row], name: Callable[[Row], tuple[str, ...]], page: PageRequest) -> tuple[list[Row], str | None]:
    """Return the page's rows, ordered by name, and the token of the next page or None."""
    ordered = sorted(rows, key=name)
    after = page.after
    found = ordered if after is None else [row for row in ordered if name(row) > after]
    if page.size is None or len(found) <= page.size:
        return found, None
    cut = found[: page.size]
    return cut, encode_page_token(name(cut[-1]))


Prefix = Annotated[str, Path(description="The warehouse's prefix, as the configuration gives it.")]
Levels = Annotated[tuple[str, ...], Depends(read_levels)]
TableName = Annotated[str, Depends(read_table_name)]
ViewName = Annotated[str, Depends(read_view_name)]
FunctionName = Annotated[str, Depends(read_function_name)]
Page = Annotated[PageRequest, Depends(read_page)]
SnapshotSelection = Literal["all", "refs"]
"""The query parameter `snapshots`: all snapshots in the metadata, or only those that refs name."""

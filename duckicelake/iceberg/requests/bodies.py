"""Bodies of requests that create tables and views or commit to them, the summary header, and the check of names. No I/O.

`rest` parses these bodies here on worker threads (small ones on the event loop), other bodies in modules of its own. Names and the summary
header are checked on the event loop too. `pipeline` uses `CreateTable`, `check_name` and `SUMMARY_HEADER` in the job's process.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from duckicelake.errors import BadRequest
from duckicelake.iceberg.json_reader import (
    as_object,
    decode_json,
    find_text,
    find_text_map,
    get_flag,
    get_list,
    get_text,
    is_text,
    refuse,
)
from duckicelake.iceberg.partition import UNPARTITIONED, UNSORTED, PartitionSpec, SortOrder, parse_sort_order, parse_spec
from duckicelake.iceberg.requests.requirements import Requirement, parse_requirements
from duckicelake.iceberg.requests.updates import (
    AddSnapshot,
    Node,
    TableUpdate,
    ViewUpdate,
    parse_child,
    parse_table_updates,
    parse_view_updates,
)
from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.iceberg.view_metadata import ViewVersion, parse_version

BODY = "request body"


@dataclass(frozen=True, slots=True)
class Identifier:
    """A table or view, as a body names it."""

    namespace: tuple[str, ...]
    name: str


@dataclass(frozen=True, slots=True)
class CommitTable:
    """A commit to a table: its updates apply if the requirements hold. The identifier is None where only the path names the table."""

    identifier: Identifier | None
    requirements: tuple[Requirement, ...]
    updates: tuple[TableUpdate, ...]


@dataclass(frozen=True, slots=True)
class CommitView:
    """A commit to a view: its updates apply if the requirements hold."""

    identifier: Identifier | None
    requirements: tuple[Requirement, ...]
    updates: tuple[ViewUpdate, ...]


@dataclass(frozen=True, slots=True)
class CreateTable:
    """A new table, or with `stage_create` only its metadata. Ids are the client's; `table_changes.build_new_metadata` replaces them."""

    name: str
    schema: Schema
    spec: PartitionSpec = UNPARTITIONED
    order: SortOrder = UNSORTED
    location: str | None = None
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    stage_create: bool = False


@dataclass(frozen=True, slots=True)
class CreateView:
    """A new view."""

    name: str
    schema: Schema
    version: ViewVersion
    properties: Mapping[str, str] = field(default_factory=dict[str, str], hash=False)
    location: str | None = None


def parse_commit_table(value: object, path: str = BODY) -> CommitTable:
    """Return the commit of a body. Raises BadRequest when malformed."""
    node = as_object(value, path)
    prefix = "" if path == BODY else f"{path}."
    return CommitTable(
        identifier=_find_identifier(node, prefix),
        requirements=parse_requirements(node.get("requirements"), f"{prefix}requirements"),
        updates=parse_table_updates(get_list(node, "updates", path), f"{prefix}updates"),
    )


def parse_transaction(value: object) -> tuple[CommitTable, ...]:
    """Return the commits of a multi-table request, each with its identifier.

    Raises: BadRequest — malformed, a commit without identifier, a table twice
    """
    items = get_list(as_object(value, BODY), "table-changes", BODY)
    commits = tuple(parse_commit_table(item, f"table-changes[{i}]") for i, item in enumerate(items))
    seen: set[Identifier] = set()
    for i, commit in enumerate(commits):
        if commit.identifier is None:
            raise BadRequest(f"Cannot read table-changes[{i}]: 'identifier' is missing; name the table")
        if commit.identifier in seen:
            raise BadRequest(f"Cannot read table-changes[{i}]: its table is changed twice; put all its updates into one change")
        seen.add(commit.identifier)
    return commits


def parse_commit_view(value: object) -> CommitView:
    """Return the view commit of a body. Raises BadRequest when malformed."""
    node = as_object(value, BODY)
    return CommitView(
        identifier=_find_identifier(node, ""),
        requirements=parse_requirements(node.get("requirements")),
        updates=parse_view_updates(get_list(node, "updates", BODY)),
    )


def parse_create_table(value: object) -> CreateTable:
    """Return the new table of a body. Raises BadRequest when malformed."""
    node = as_object(value, BODY)
    return CreateTable(
        name=_get_name(node),
        schema=parse_child(node, "schema", BODY, parse_schema),
        spec=UNPARTITIONED if node.get("partition-spec") is None else parse_child(node, "partition-spec", BODY, parse_spec),
        order=UNSORTED if node.get("write-order") is None else parse_child(node, "write-order", BODY, parse_sort_order),
        location=_find_location(node),
        properties=find_text_map(node, "properties", BODY) or {},
        stage_create=node.get("stage-create") is not None and get_flag(node, "stage-create", BODY),
    )


def parse_create_view(value: object) -> CreateView:
    """Return the new view of a body. Raises BadRequest when malformed."""
    node = as_object(value, BODY)
    return CreateView(
        name=_get_name(node),
        schema=parse_child(node, "schema", BODY, parse_schema),
        version=parse_child(node, "view-version", BODY, parse_version),
        properties=find_text_map(node, "properties", BODY) or {},
        location=_find_location(node),
    )


def parse_identifier(value: object, path: str) -> Identifier:
    """Return the table or view that JSON names. Raises BadRequest when malformed or empty."""
    node = as_object(value, path)
    levels = get_list(node, "namespace", path)
    if not levels or not all(is_text(level) and level for level in levels):
        refuse(path, "namespace", "an array of names")
    return Identifier(tuple(str(level) for level in levels), get_text(node, "name", path) or refuse(path, "name", "a name"))


def _find_identifier(node: Node, prefix: str) -> Identifier | None:
    return None if node.get("identifier") is None else parse_identifier(node["identifier"], f"{prefix}identifier")


def _get_name(node: Node) -> str:
    return get_text(node, "name", BODY) or refuse(BODY, "name", "a name")


def _find_location(node: Node) -> str | None:
    location = find_text(node, "location", BODY)
    return refuse(BODY, "location", "a URI, or leave it out") if location == "" else location


SUMMARY_HEADER = "X-DuckIceLake-Summary"
SUMMARY_KEY_PREFIX = "duckicelake."
"""Keys of the header begin with this, because readers give a meaning to the other keys of a summary."""
SUMMARY_HEADER_BYTES_MAX = 4096


def parse_summary_header(text: str) -> dict[str, str]:
    """Return the keys and texts of a summary header, for clients that cannot set the summary of a snapshot themselves.

    Raises: BadRequest — malformed, too long, or a key without the prefix
    """
    what = f"header {SUMMARY_HEADER}"
    if len(text) > SUMMARY_HEADER_BYTES_MAX:
        raise BadRequest(f"Cannot read {what}: it is longer than {SUMMARY_HEADER_BYTES_MAX} bytes")
    node = as_object(decode_json(text.encode("latin-1", "replace"), what), what)
    properties = {key: str(value) for key, value in node.items() if key.startswith(SUMMARY_KEY_PREFIX) and is_text(value)}
    if len(properties) < len(node):
        raise BadRequest(f"Cannot read {what}: send an object of strings whose keys begin with {SUMMARY_KEY_PREFIX!r}")
    return properties


def add_to_summaries(commit: CommitTable, properties: Mapping[str, str]) -> CommitTable:
    """Return the commit with `properties` added to the summaries of its new snapshots; a snapshot's own keys win."""
    if not properties:
        return commit
    updates = (
        AddSnapshot(replace(update.snapshot, summary={**properties, **update.snapshot.summary}))
        if isinstance(update, AddSnapshot)
        else update
        for update in commit.updates
    )
    return replace(commit, updates=tuple(updates))


MAX_NAME_BYTES = 1024
"""An S3 key has at most 1,024 bytes, and DuckLake puts the table's name into the keys of its files."""

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
SURROGATE = re.compile(r"[\ud800-\udfff]")


def check_name(name: str, what: str) -> str:
    """Return the name of a table, view or namespace level unchanged.

    Raises: BadRequest: it is empty, too long, or holds a control character or half a surrogate pair
    """
    if not name:
        raise BadRequest(f"The {what} is empty.")
    if SURROGATE.search(name):
        raise BadRequest(f"The {what} holds half a surrogate pair, which UTF-8 cannot express.")
    if CONTROL.search(name):
        raise BadRequest(f"The {what} {name[:64]!r} holds a control character.")
    if len(name.encode()) > MAX_NAME_BYTES:
        raise BadRequest(f"The {what} {name[:64]!r}… is longer than {MAX_NAME_BYTES} bytes.")
    return name

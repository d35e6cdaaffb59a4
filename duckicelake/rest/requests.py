"""Bodies that clients send: read whole, decoded strictly, and told to OpenAPI."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request

from duckicelake.errors import BadRequest
from duckicelake.iceberg.encoding.json_body import decode_json
from duckicelake.iceberg.encoding.json_reader import as_object, find_list, find_text_map, get_list, is_text
from duckicelake.iceberg.requests.bodies import Identifier, parse_identifier
from duckicelake.rest.params import check_name

TEXT: Mapping[str, Any] = {"type": "string"}
TEXTS: Mapping[str, Any] = {"type": "array", "items": TEXT}
OBJECT: Mapping[str, Any] = {"type": "object"}
OBJECTS: Mapping[str, Any] = {"type": "array", "items": OBJECT}
FLAG: Mapping[str, Any] = {"type": "boolean"}
TEXT_MAP: Mapping[str, Any] = {"type": "object", "additionalProperties": TEXT}


async def read_body(request: Request) -> bytes:
    """Return the request's body; the threads that answer requests decode it."""
    return await request.body()


Body = Annotated[bytes, Depends(read_body)]


def describe_body(required: Sequence[str], properties: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return what the OpenAPI page says of a body."""
    schema = {"type": "object", "required": list(required), "properties": dict(properties)}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


@dataclass(frozen=True, slots=True)
class CreateNamespace:
    """A namespace to be made."""

    levels: tuple[str, ...]
    properties: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class UpdateProperties:
    """Properties of a namespace to be changed."""

    removals: Sequence[str]
    updates: Mapping[str, str]


def decode_create_namespace(body: bytes) -> CreateNamespace:
    """Return what a body asks for. Raises BadRequest when it is malformed."""
    what = "request to create a namespace"
    node = as_object(decode_json(body), what)
    return CreateNamespace(parse_levels(get_list(node, "namespace", what)), find_text_map(node, "properties", what) or {})


def decode_update_properties(body: bytes) -> UpdateProperties:
    """Return what a body asks for. Raises BadRequest when it is malformed."""
    what = "request to change properties"
    node = as_object(decode_json(body), what)
    removals = find_list(node, "removals", what) or []
    if not all(is_text(key) for key in removals):
        raise BadRequest("Cannot read request to change properties: 'removals' holds something other than strings; send names")
    return UpdateProperties([str(key) for key in removals], find_text_map(node, "updates", what) or {})


def parse_levels(levels: Sequence[object]) -> tuple[str, ...]:
    """Return a namespace's levels. Raises BadRequest when one is no name."""
    if not levels or not all(is_text(level) for level in levels):
        raise BadRequest("Cannot read namespace: send an array of at least one string")
    return tuple(check_name(str(level), "namespace") for level in levels)


@dataclass(frozen=True, slots=True)
class RenameTable:
    """A table to be given another name."""

    source: Identifier
    destination: Identifier


def decode_rename(body: bytes) -> RenameTable:
    """Return what a body asks for. Raises BadRequest when it is malformed."""
    node = as_object(decode_json(body), "request to rename")
    return RenameTable(*(check_identifier(parse_identifier(node.get(key), key)) for key in ("source", "destination")))


def check_identifier(identifier: Identifier) -> Identifier:
    """Return the identifier as it is. Raises BadRequest when one of its parts is no name."""
    for level in identifier.namespace:
        check_name(level, "namespace")
    check_name(identifier.name, "table")
    return identifier

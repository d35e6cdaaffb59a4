"""What can be wrong with a request: a value lost, doubled, swapped, of another type, out of range, or of another request."""

import copy
import json
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

from tests.rest.hostile.recorded import Recorded

Path = tuple[Any, ...]
Draw = Callable[[st.SearchStrategy[Any]], Any]

NUMBERS = st.sampled_from(
    [0, -1, 1, 2, 3, 4, 999, 1000, 2**31 - 1, 2**31, -(2**31) - 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**400, 0.5, -0.0, 1e308]
)
PLACES = """
{location} {location}/data/x {location}/../x {other-location} {other-location}/below {view-location} {view-location}/metadata {data-path}
{data-path}x {iceberg-path} {iceberg-path}new {manifest-list} {fresh-list} {other-list} {metadata-location} {other-metadata} s3:// s3://elsewhere/x
file:///etc/passwd /etc/passwd http://127.0.0.1:1/x .. ../.. . / a/b
""".split()
TYPES = """
int long string list map struct variant unknown geometry geometry(x) timestamp_ns decimal(38,38) decimal(39,0) decimal(9,-1) fixed[0]
fixed[99999999999] bucket[0] bucket[99999999999] bucket[4] truncate[-1] truncate[3] void identity year hour zorder
""".split()
NAMES = """
ID Name NAME row_id _row_id begin_snapshot _ducklake_internal_x _file _pos _last_updated_sequence_number main MAIN dev v1 kept a.b branch
tag
append delete replace sql duckdb spark {uuid} {other-uuid} {view-uuid} 00000000-0000-0000-0000-000000000000 format-version gc.enabled
comment
ducklake.snapshot-id schema.name-mapping.default write.metadata.path write.data.path write.metadata.previous-versions-max true 1 4 0 -5
replace.drop-dialect.allowed
""".split()
ODD = ["", " ", "\0", "a\0b", "\ud800", "x" * 5000, "ü" * 600, "\x1f", "null", "[]", "[{}]", "{", "not a uuid", "zoë\u202e\U0001f986"]
SQL = ["SELECT 1", "SELECT * FROM t; DROP TABLE t", "'; --"]
TEXTS = st.sampled_from([*PLACES, *TYPES, *NAMES, *ODD, *SQL])
IDS = st.sampled_from(
    [f"{{{name}}}" for name in ("snapshot", "old-snapshot", "new-snapshot", "second-snapshot", "other-snapshot", "sequence-number")]
)
LEAVES = NUMBERS | TEXTS | IDS | st.booleans() | st.none()
VALUES = LEAVES | st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=4)


def list_paths(node: Any, above: Path = ()) -> list[Path]:
    """Where something is in the JSON, the whole first."""
    found = [above]
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in pairs:
        found += list_paths(value, (*above, key))
    return found


def get(node: Any, path: Path) -> Any:
    """What is there."""
    for key in path:
        node = node[key]
    return node


def replaced(node: Any, path: Path, value: Any) -> Any:
    """A copy with another value there."""
    if not path:
        return copy.deepcopy(value)
    made = copy.deepcopy(node)
    get(made, path[:-1])[path[-1]] = copy.deepcopy(value)
    return made


def _drop(draw: Draw, body: Any, path: Path, others: Sequence[Recorded]) -> Any:
    made = copy.deepcopy(body)
    if path:
        del get(made, path[:-1])[path[-1]]
    return made


def _replace(draw: Draw, body: Any, path: Path, others: Sequence[Recorded]) -> Any:
    return replaced(body, path, draw(VALUES))


def _vary(draw: Draw, body: Any, path: Path, others: Sequence[Recorded]) -> Any:
    """Another value of the same type: what a check of types lets through."""
    found = get(body, path)
    kinds = ((bool, st.booleans()), (int, NUMBERS), (str, TEXTS | IDS))
    same = next((values for kind, values in kinds if isinstance(found, kind)), VALUES)
    return replaced(body, path, draw(same))


def _double(draw: Draw, body: Any, path: Path, others: Sequence[Recorded]) -> Any:
    """An item twice, or a value under a second key as well."""
    if not path:
        return [body, body]
    above = copy.deepcopy(get(body, path[:-1]))
    found = copy.deepcopy(get(body, path))
    if isinstance(above, list):
        above.insert(draw(st.integers(0, len(above))), found)
    else:
        above[draw(TEXTS)] = found
    return replaced(body, path[:-1], above)


def _graft(draw: Draw, body: Any, path: Path, others: Sequence[Recorded]) -> Any:
    """Something of another request, whole or in part."""
    other = draw(st.sampled_from(others)).body
    return replaced(body, path, get(other, draw(st.sampled_from(list_paths(other)))))


def _add_update(draw: Draw, body: Any, path: Path, others: Sequence[Recorded]) -> Any:
    """An update or a requirement of another request as well."""
    key = draw(st.sampled_from(["updates", "updates", "requirements"]))
    items = [item for other in others for item in list_items(other.body, key)]
    made = copy.deepcopy(body)
    changes = made.get("table-changes") if isinstance(made, dict) else None
    holder = changes[0] if isinstance(changes, list) and changes else made
    if not isinstance(holder, dict) or not isinstance(holder.get(key), list):
        return _replace(draw, body, path, others)
    holder[key].insert(draw(st.integers(0, len(holder[key]))), draw(st.sampled_from(items)))
    return made


def list_items(body: Any, key: str) -> list[Any]:
    """The updates or requirements of a request."""
    found = body.get(key) if isinstance(body, dict) else None
    return found if isinstance(found, list) else []


WAYS = (_drop, _replace, _vary, _vary, _vary, _double, _graft, _add_update, _add_update)


def mutate(draw: Draw, body: Any, others: Sequence[Recorded]) -> Any:
    """The body with one to three things wrong."""
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list_paths(body)))
        body = draw(st.sampled_from(WAYS))(draw, body, path, others)
    return body


Spelling = Callable[[Any], bytes]


def draw_spelling(draw: Draw) -> Spelling:
    """How to write JSON as bytes, now and then not quite; what is drawn depends on no body."""
    share, noise = draw(st.floats(0, 1)), draw(st.binary(min_size=1, max_size=4))
    ways: dict[str, Callable[[bytes], bytes]] = {
        "cut": lambda text: text[: int(len(text) * share)],
        "noise": lambda text: text[: int(len(text) * share)] + noise + text[int(len(text) * share) :],
        "infinite": lambda text: text.replace(b": 1", b": Infinity").replace(b": 0", b": NaN"),
        "twice": lambda text: text.replace(b"{", b'{"action": "x", "action": "y", ', 1),
        "huge": lambda text: text.replace(b": 1", b": 1e999999").replace(b": 2", b": " + b"9" * 5000),
    }
    way = draw(st.sampled_from(["whole"] * 20 + sorted(ways)))
    return lambda body: ways.get(way, bytes)(json.dumps(body).encode())

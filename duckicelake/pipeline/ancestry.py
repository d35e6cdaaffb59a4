"""Which snapshots of a table lead where, from its metadata; pure."""

from collections.abc import Iterator, Mapping
from typing import Any

MAIN = "main"


def walk(metadata: Mapping[str, Any], snapshot_id: int | None) -> Iterator[Mapping[str, Any]]:
    """A snapshot and those that it came from, as far as they are still there."""
    known = {one["snapshot-id"]: one for one in metadata.get("snapshots", ())}
    while snapshot_id in known:
        found = known.pop(snapshot_id)
        yield found
        snapshot_id = found.get("parent-snapshot-id")


def list_named(metadata: Mapping[str, Any], without: Mapping[str, Any]) -> set[int]:
    """Those that refs lead to, but for some refs: all that branches and tags come from, and where main is."""
    refs = {name: ref["snapshot-id"] for name, ref in metadata.get("refs", {}).items() if name not in without}
    named = {refs.get(MAIN, metadata.get("current-snapshot-id") or -1)}
    return named | {one["snapshot-id"] for name, head in refs.items() if name != MAIN for one in walk(metadata, head)}

"""What a request's header says of the snapshots in its body, for clients that cannot say it there; pure."""

from collections.abc import Mapping

from duckicelake.errors import BadRequest
from duckicelake.iceberg.encoding.json_body import decode_json
from duckicelake.iceberg.encoding.json_reader import as_object, is_text
from duckicelake.iceberg.requests.bodies import CommitTable
from duckicelake.iceberg.requests.updates import AddSnapshot
from duckicelake.values import replace

SUMMARY_HEADER = "X-DuckIceLake-Summary"
SUMMARY_KEY_PREFIX = "duckicelake."
"""With what its keys begin: all others of a summary mean something to readers."""
SUMMARY_HEADER_BYTES_MAX = 4096


def parse_summary_header(text: str) -> dict[str, str]:
    """The keys and texts of a header. Raises: BadRequest: malformed, too long, or with a key of another kind"""
    what = f"header {SUMMARY_HEADER}"
    if len(text) > SUMMARY_HEADER_BYTES_MAX:
        raise BadRequest(f"Cannot read {what}: it is longer than {SUMMARY_HEADER_BYTES_MAX} bytes")
    node = as_object(decode_json(text.encode("latin-1", "replace"), what), what)
    properties = {key: str(value) for key, value in node.items() if key.startswith(SUMMARY_KEY_PREFIX) and is_text(value)}
    if len(properties) < len(node):
        raise BadRequest(f"Cannot read {what}: send an object of strings whose keys begin with {SUMMARY_KEY_PREFIX!r}")
    return properties


def add_to_summaries(commit: CommitTable, properties: Mapping[str, str]) -> CommitTable:
    """The commit, whose new snapshots have this in their summaries too; what they say themselves counts."""
    if not properties:
        return commit
    updates = (
        AddSnapshot(replace(update.snapshot, summary={**properties, **update.snapshot.summary}))
        if isinstance(update, AddSnapshot)
        else update
        for update in commit.updates
    )
    return replace(commit, updates=tuple(updates))

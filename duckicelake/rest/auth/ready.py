"""Which ready answers a principal may have: decided once per path and session, and remembered."""

from starlette.types import Scope

from duckicelake.access.grants import Rights
from duckicelake.access.sessions import Session
from duckicelake.errors import BadRequest
from duckicelake.rest.cache import TableKey, find_table_key
from duckicelake.rest.params import decode_segment, split_levels

NAMESPACE_PART = 4


def find_allowed_key(scope: Scope) -> TableKey | None:
    """Return where the answer to this request is kept; None too when who asks may not have it: the routes say why."""
    key = find_table_key(scope)
    session: Session | None = scope.get("session")
    if key is None or session is None:
        return None
    rights = find_rights(session, key[0])
    is_allowed = Rights.READ in rights if scope["method"] == "GET" else rights is not Rights.NONE
    return key if is_allowed else None


def find_rights(session: Session, raw_path: bytes) -> Rights:
    """Return a session's rights in the namespace of a table's path."""
    known = session.decided.get(raw_path)
    return session.remember(raw_path, decide(session, raw_path)) if known is None else known


def decide(session: Session, raw_path: bytes) -> Rights:
    """Return the rights behind a path, none when it names no namespace."""
    try:
        return session.rights_on(split_levels(decode_segment(raw_path.split(b"/")[NAMESPACE_PART].decode("latin-1"), "namespace")))
    except BadRequest:
        return Rights.NONE

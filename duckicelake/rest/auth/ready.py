"""Which ready answers a principal may have: decided once per path and session, and remembered."""

from starlette.types import Scope

from duckicelake.access.grants import Rights
from duckicelake.access.sessions import Session
from duckicelake.errors import BadRequest
from duckicelake.rest.cache import TableKey, find_table_key
from duckicelake.rest.params import decode_segment, split_levels

NAMESPACE_PART = 4
DELEGATION, VENDED = b"x-iceberg-access-delegation", b"vended-credentials"


def find_allowed_key(scope: Scope) -> TableKey | None:
    """Return where the answer to this request is kept; None too when who asks may not have it: the routes say why."""
    key = find_table_key(scope)
    session: Session | None = scope.get("session")
    if key is None or session is None:
        return None
    rights = find_rights(session, key[0])
    is_allowed = Rights.READ in rights if scope["method"] == "GET" else rights is not Rights.NONE
    if not is_allowed:
        return None
    wanted = Rights.NONE if scope["method"] == "HEAD" else find_wanted(scope, rights)
    return key if wanted is Rights.NONE else (key[0], f"{key[1]} {wanted.value}")


def find_wanted(scope: Scope, rights: Rights) -> Rights:
    """Return the rights for which the client wants keys with its answer, none when it wants no keys."""
    asked = [value for name, value in scope["headers"] if name == DELEGATION]
    return rights & (Rights.READ | Rights.WRITE) if any(asks_for_keys(value) for value in asked) else Rights.NONE


def asks_for_keys(value: bytes) -> bool:
    """Tell whether an X-Iceberg-Access-Delegation header takes keys."""
    return value == VENDED or any(part.strip() == VENDED for part in value.split(b","))


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

"""Which ready answers a principal may have: decided once per path and session, and remembered."""

from starlette.types import Scope

from duckicelake.access.grants import Rights
from duckicelake.access.policy import TABLE
from duckicelake.access.sessions import Session
from duckicelake.errors import BadRequest
from duckicelake.rest.cache import TableKey, find_table_key
from duckicelake.rest.params import decode_segment, split_levels

NAMESPACE_PART, TABLE_PART = 4, 6
DELEGATION, VENDED, SIGNING = b"x-iceberg-access-delegation", b"vended-credentials", b"remote-signing"

KEYED = Rights.READ | Rights.WRITE


def find_permitted_key(scope: Scope) -> TableKey | None:
    """Return where the answer to this request is kept; None too when who asks may not have it: the routes say why."""
    key = find_table_key(scope)
    session: Session | None = scope.get("session")
    if key is None or session is None:
        return None
    rights = get_rights(session, key[0])
    is_allowed = Rights.READ in rights if scope["method"] == "GET" else rights is not Rights.NONE
    if not is_allowed:
        return None
    asked = b"" if scope["method"] == "HEAD" else read_delegation(scope)
    wanted, signing = rights & KEYED if includes_delegation(asked, VENDED) else Rights.NONE, includes_delegation(asked, SIGNING)
    return (key[0], f"{key[1]} {wanted.value}{' signing' * signing}") if wanted is not Rights.NONE or signing else key


def get_delegated_rights(scope: Scope, rights: Rights) -> Rights:
    """Return the rights for which the client wants keys with its answer, none when it wants no keys."""
    return rights & KEYED if includes_delegation(read_delegation(scope), VENDED) else Rights.NONE


def accepts_signing(scope: Scope) -> bool:
    """Tell whether the client takes signatures of the requests that it sends to the store."""
    return includes_delegation(read_delegation(scope), SIGNING)


def read_delegation(scope: Scope) -> bytes:
    """Return what a client takes in the place of keys of its own: its X-Iceberg-Access-Delegation headers, or nothing."""
    return b",".join([value for name, value in scope["headers"] if name == DELEGATION])


def includes_delegation(asked: bytes, kind: bytes) -> bool:
    """Tell whether a kind is in the header's list."""
    return asked == kind or (kind in asked and any(part.strip() == kind for part in asked.split(b",")))


def get_rights(session: Session, raw_path: bytes) -> Rights:
    """Return a session's rights on a table's path."""
    known = session.decided.get(raw_path)
    return session.remember(raw_path, compute_rights(session, raw_path)) if known is None else known


def compute_rights(session: Session, raw_path: bytes) -> Rights:
    """Return the rights behind a path, none when it names no table."""
    parts = raw_path.decode("latin-1").split("/")
    try:
        levels = split_levels(decode_segment(parts[NAMESPACE_PART], "namespace"))
        return session.rights_at(TABLE, levels, decode_segment(parts[TABLE_PART], "table"))
    except BadRequest:
        return Rights.NONE

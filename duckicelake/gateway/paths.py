"""Request paths on their way to the upstream. Pure; paths stay percent-encoded as the client wrote them.

Law: the segments behind the prefix reach the upstream byte for byte (`%1F`, `%2F`, `%2E`, `+`), and so does the upstream's own prefix,
which its configuration may give percent-encoded already (Nessie: `main%7Cwarehouse`).
"""

from dataclasses import dataclass
from urllib.parse import urlsplit

ROOT = "/v1/"
CONFIG = "/v1/config"
SIGN_ANYWHERE = "aws/s3/sign"
"""The path at which older clients request signatures. It has no prefix upstream."""
COLLECTIONS = frozenset({"namespaces", "tables", "views", "transactions"})
"""The first segments behind a prefix in the specification."""


@dataclass(frozen=True, slots=True)
class ForwardedPath:
    """A path below `/v1/`. `prefix`: the client's first segment, percent-encoded; `rest`: what follows, without its slash."""

    prefix: str
    rest: str


def split_path(raw_path: str) -> ForwardedPath | None:
    """Return the parts of a path below `/v1/`, None for any other path."""
    if not raw_path.startswith(ROOT):
        return None
    prefix, _, rest = raw_path[len(ROOT) :].partition("/")
    return ForwardedPath(prefix, rest)


def join_path(base: str, prefix: str, rest: str) -> str:
    """Return the upstream's path. `base`: the path of its URI; `prefix`: as its configuration gives it, empty for none."""
    return f"{base.rstrip('/')}{ROOT}{prefix + '/' if prefix and rest != SIGN_ANYWHERE else ''}{rest}"


def build_url(uri: str, path: str, query: str) -> str:
    """Return the URL of a path, which replaces the path of `uri`."""
    parts = urlsplit(uri)
    return f"{parts.scheme}://{parts.netloc}{path}{'?' + query if query else ''}"


def get_base(uri: str) -> str:
    """Return the path of a URI without its trailing slash."""
    return urlsplit(uri).path.rstrip("/")


def rewrite_endpoint(value: str, uri: str, upstream_prefix: str, prefix: str | None) -> str | None:
    """Return a path or URL of the upstream as a path relative to this catalog's URI; None if it is not the upstream's.

    `uri`: the upstream's URI. `prefix` None: clients use the upstream's own. Clients send their token to such an endpoint, so a foreign one
    must not reach them.
    """
    theirs, asked = urlsplit(uri), urlsplit(value)
    if asked.scheme or asked.netloc:
        if (asked.scheme or theirs.scheme, asked.netloc) != (theirs.scheme, theirs.netloc):
            return None
        path = asked.path
    else:
        path = asked.path if asked.path.startswith("/") else f"{get_base(uri)}/{asked.path}"
    root = f"{get_base(uri)}{ROOT}"
    if not path.startswith(root) and not (asked.scheme or asked.netloc) and path.startswith(ROOT):
        # Relative to the catalog's URI, although it begins with a slash.
        path = get_base(uri) + path
    if not path.startswith(root) or "/../" in path + "/":
        return None
    rest, query = path[len(root) :], "?" + asked.query if asked.query else ""
    if prefix is None:
        return f"v1/{rest}{query}"
    if upstream_prefix and rest.startswith(f"{upstream_prefix}/"):
        rest = rest[len(upstream_prefix) + 1 :]
    elif upstream_prefix and rest != SIGN_ANYWHERE:
        return None
    return f"v1/{prefix}/{rest}{query}"

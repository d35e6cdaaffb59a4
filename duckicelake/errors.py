"""The errors of the catalog, named after Iceberg's error types.

Each message says what is wrong, which object it concerns and what to do. Nothing here depends on HTTP: `rest/errors.py` maps a class to
its status and Iceberg error type. Every package raises them; the command line prints the message.
"""

from collections.abc import Sequence
from typing import Any


class CatalogError(Exception):
    """An error with a message for the client.

    `denied`: for the audit log, the object on which the principal lacks a right, if the error hides it or the path does not name it.
    """

    denied: str | None = None

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class NoSuchWarehouse(CatalogError):
    """The warehouse (= REST prefix = one lake) is not served here."""


class NoSuchNamespace(CatalogError):
    """The namespace does not exist."""


class NoSuchTable(CatalogError):
    """The table does not exist."""


class NoSuchView(CatalogError):
    """The view does not exist."""


class NoSuchFunction(CatalogError):
    """The function does not exist."""


class NoSuchPlanId(CatalogError):
    """No scan plan of this table has that id."""


class NoSuchPlanTask(CatalogError):
    """No scan plan of this table has that plan task, or its snapshot no longer exists."""


class NotFound(CatalogError):
    """An object that the table's state references is missing from the object store."""


class NoSuchRef(NotFound):
    """The branch, the tag or the lake snapshot of a request on branches does not exist."""


class AlreadyExists(CatalogError):
    """A namespace, table or view of that name exists."""


class DropProtected(CatalogError):
    """A property protects the table or namespace from being dropped."""


class NamespaceNotEmpty(CatalogError):
    """The namespace still holds tables or views."""


class MergeConflicts(CatalogError):
    """Changes of a branch and of its lake exclude each other, and nothing was written. `conflicts`: each of them."""

    def __init__(self, message: str, conflicts: Sequence[Any] = ()) -> None:
        super().__init__(message)
        self.conflicts = conflicts


class BadRequest(CatalogError):
    """The request is malformed or contradicts itself."""


class IllegalArgument(BadRequest):
    """The request contradicts itself in a way for which Java's client has its own exception type."""


class Unprocessable(CatalogError):
    """The request is well formed, and its parts exclude each other."""


class Unsupported(CatalogError):
    """The lake holds, or the client requests, something that Iceberg or this catalog cannot represent."""


class NotServed(Unsupported):
    """The operation of the REST specification is not served by this catalog."""


class Damaged(Unsupported):
    """The lake's rows contradict each other and have to be corrected in Postgres."""


class PostgresRefused(Unsupported):
    """Postgres refuses a statement for a reason that may not last, although the lake is unchanged."""


class NotAuthorized(CatalogError):
    """The request has no valid token."""


class Forbidden(CatalogError):
    """The principal is authenticated and lacks a right."""


class TooManyRequests(CatalogError):
    """The principal sends too many requests; nothing was done, and the client may repeat the request."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CommitFailed(CatalogError):
    """A requirement does not hold any more; the client must refresh and retry."""


class CommitGaveUp(CommitFailed):
    """Others were in the way of a commit for too long; nothing was done, and the client may repeat the same request."""


class CommitStateUnknown(CatalogError):
    """The outcome of the commit is unknown; the client must check the table before a retry."""


class ServiceUnavailable(CatalogError):
    """Postgres or the object store does not respond."""


class RouteUnavailable(ServiceUnavailable):
    """The catalog behind a route cannot be reached; nothing was sent, and the client may repeat the request."""


class RouteRefused(ServiceUnavailable):
    """The catalog behind a route does not accept the credentials that the settings give this server for it."""


class RouteTimeout(CatalogError):
    """The catalog behind a route received a request that changes nothing, and did not answer it."""


class RouteStateUnknown(CommitStateUnknown):
    """The catalog behind a route received a change and did not answer it; the client must look before a retry."""


class BadRouteAnswer(CatalogError):
    """The catalog behind a route gave an answer that is none of the Iceberg REST protocol, or one that is too large."""


class RouteLoop(CatalogError):
    """A request came back to the route that forwarded it."""


class LakeBusy(ServiceUnavailable):
    """Other commits held the lake's lock for too long; nothing was done, and the client may repeat the request."""


class LakeMoved(ServiceUnavailable):
    """Maintenance removed rows or objects during a read; another read returns the new state."""


class TableVanished(LakeMoved):
    """A table of inlined rows in DuckLake's registry does not exist: it was flushed meanwhile, or lost."""

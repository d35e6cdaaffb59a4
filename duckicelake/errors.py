"""What can go wrong, in Iceberg's words.

Each message says what is wrong, which thing it concerns and what to do. Nothing here knows HTTP:
`rest/errors.py` maps a class to its status and Iceberg type.
"""


class CatalogError(Exception):
    """Anything the catalog refuses or cannot do, with a message meant for the client.

    `denied`: the object that somebody has no right to, where the error only says that it is not there, or its path does not name it.
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


class NoSuchPlanId(CatalogError):
    """No plan of a scan of this table has that id."""


class NoSuchPlanTask(CatalogError):
    """No plan of a scan of this table has that task, or what it is of is there no longer."""


class NotFound(CatalogError):
    """An object that the state names is missing from the object store."""


class AlreadyExists(CatalogError):
    """A namespace, table or view of that name exists."""


class NamespaceNotEmpty(CatalogError):
    """The namespace still holds tables or views."""


class BadRequest(CatalogError):
    """The request is malformed, unknown or contradictory."""


class IllegalArgument(BadRequest):
    """The request contradicts itself in a way that Java's client knows by a type of its own."""


class Unprocessable(CatalogError):
    """The request is well formed and asks for two opposite things."""


class Unsupported(CatalogError):
    """The lake holds, or the client asks for, something that Iceberg or this catalog cannot say."""


class NotServed(Unsupported):
    """An operation of the REST specification that this catalog does not have."""


class Damaged(Unsupported):
    """The lake's rows contradict themselves; somebody has to correct them in Postgres."""


class PostgresRefused(Unsupported):
    """Postgres refuses a statement, for a reason that may be gone when it is asked again, though the lake is as it was."""


class NotAuthorized(CatalogError):
    """The client is not known."""


class Forbidden(CatalogError):
    """The client is known and has no right to this."""


class TooManyRequests(CatalogError):
    """The client is known and asks too often; nothing was done, and the same request may come again."""

    def __init__(self, message: str, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class CommitFailed(CatalogError):
    """A requirement does not hold any more; refresh and try again."""


class CommitStateUnknown(CatalogError):
    """Nobody knows whether the commit landed; look before trying again."""


class ServiceUnavailable(CatalogError):
    """Postgres or the object store does not answer."""


class LakeBusy(ServiceUnavailable):
    """Other commits held the lake's lock for too long; nothing was done, and the same request may come again."""


class LakeMoved(ServiceUnavailable):
    """Maintenance removed something while it was being read; reading again gives the new state."""


class TableVanished(LakeMoved):
    """A table of inlined rows that DuckLake's registry names is gone: flushed meanwhile, or lost."""

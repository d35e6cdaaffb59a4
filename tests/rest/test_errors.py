"""Every error has one status and one of the specification's types, and one shape."""

import inspect
import json

import pytest
from fastapi.exceptions import RequestValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from duckicelake import errors
from duckicelake.errors import CatalogError, CommitStateUnknown, NoSuchTable, ServiceUnavailable
from duckicelake.rest.errors import (
    HTTP_TYPES,
    STATUS_AND_TYPE,
    build_catalog_error,
    build_http_error,
    build_server_error,
    describe_invalid,
    get_status_and_type,
)

SPECIFIED_TYPES = {
    "AlreadyExistsException",
    "AuthenticationTimeoutException",
    "BadRequestException",
    "CommitFailedException",
    "CommitStateUnknownException",
    "InternalServerError",
    "NamespaceNotEmptyException",
    "NoSuchFunctionException",
    "NoSuchNamespaceException",
    "NoSuchPlanIdException",
    "NoSuchPlanTaskException",
    "NoSuchTableException",
    "NoSuchViewException",
    "NoSuchWarehouseException",
    "NotAuthorizedException",
    "SlowDownException",
    "UnprocessableEntityException",
    "UnsupportedOperationException",
}
"""Every type that rest-catalog-open-api.yaml names (7f879b11)."""

KNOWN_TO_JAVA_ONLY = {"NotFoundException", "IllegalArgumentException"}
"""ErrorHandlers.java tells a missing object from a missing table, and an argument that can never be right from a body that is
malformed, by them; the specification has no words for that."""

OURS_ALONE = {"DamagedLakeException", "MergeConflictException"}
"""For the first, clients choose by the status, 406 (docs/decisions/010): in Java's ErrorHandlers.java no other word comes with it. The
second is an answer below /management alone, which no Iceberg client asks."""

ALL_ERRORS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, CatalogError)]


@pytest.mark.parametrize("kind", [kind for kind in ALL_ERRORS if not kind.__subclasses__()], ids=lambda kind: kind.__name__)
def test_every_leaf_has_a_row_of_its_own(kind: type[CatalogError]) -> None:
    """A new error must say how it is answered."""
    assert kind in STATUS_AND_TYPE


@pytest.mark.parametrize("kind", sorted({kind for _, kind in STATUS_AND_TYPE.values()} | set(HTTP_TYPES.values())))
def test_every_type_is_one_that_clients_know(kind: str) -> None:
    """Clients choose their exception by the type, so it must be a word of the protocol."""
    assert kind in SPECIFIED_TYPES | KNOWN_TO_JAVA_ONLY | OURS_ALONE


def test_the_nearest_class_decides() -> None:
    """An error without a row is answered as its nearest ancestor with one."""

    class NoSuchSnapshotOfTable(NoSuchTable):
        """A kind of missing table."""

    assert get_status_and_type(NoSuchSnapshotOfTable) == (404, "NoSuchTableException")
    assert get_status_and_type(CatalogError) == (500, "InternalServerError")


def test_the_body_is_icebergs() -> None:
    """message, type and code inside `error`, and nothing beside it."""
    response = build_catalog_error({"type": "http", "method": "GET"}, NoSuchTable("Table does not exist: é.t"))
    assert response.status_code == 404
    assert response.headers["content-type"] == "application/json"
    assert json.loads(bytes(response.body)) == {
        "error": {"message": "Table does not exist: é.t", "type": "NoSuchTableException", "code": 404}
    }


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_a_read_is_told_to_come_again(method: str) -> None:
    """503 on a read carries Retry-After."""
    assert build_catalog_error({"type": "http", "method": method}, ServiceUnavailable("gone")).headers["retry-after"] == "1"


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
@pytest.mark.parametrize("kind", [kind for kind in ALL_ERRORS if get_status_and_type(kind)[0] == 401], ids=lambda kind: kind.__name__)
def test_a_401_says_what_it_wants(kind: type[CatalogError], method: str) -> None:
    """A challenge comes with each, wherever it is raised (RFC 9110, 11.6.1); those of /v1/oauth/tokens have their own."""
    assert build_catalog_error({"type": "http", "method": method}, kind("who?")).headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_write_is_never_told_to_come_again(method: str) -> None:
    """Java sends a POST again by itself on 503 with Retry-After: a commit could land twice."""
    assert "retry-after" not in build_catalog_error({"type": "http", "method": method}, ServiceUnavailable("gone")).headers


def test_an_unknown_outcome_is_a_500_that_says_so() -> None:
    """Clients keep their files on CommitStateUnknownException."""
    assert get_status_and_type(CommitStateUnknown) == (500, "CommitStateUnknownException")


def test_head_has_no_body() -> None:
    """A refused HEAD has its status and nothing else."""
    response = build_catalog_error({"type": "http", "method": "HEAD"}, NoSuchTable("gone"))
    assert (response.status_code, response.body) == (404, b"")


def test_a_server_error_tells_nothing_but_its_request_id() -> None:
    """What went wrong is for the log."""
    body = json.loads(bytes(build_server_error({"type": "http", "method": "GET", "request_id": "ab12-7"}).body))
    assert body["error"]["code"] == 500
    assert body["error"]["message"].endswith("ab12-7.")
    assert set(body) == {"error"}


def test_names_that_are_no_unicode_cannot_break_the_error() -> None:
    """A lone surrogate in a message is shown as a question mark."""
    response = build_catalog_error({"type": "http", "method": "GET"}, NoSuchTable("Table does not exist: \ud800"))
    assert json.loads(bytes(response.body))["error"]["message"] == "Table does not exist: ?"


def test_a_long_path_is_not_sent_back_whole() -> None:
    """An unknown route is named by its beginning."""
    scope = {"type": "http", "method": "GET", "path": "/x" * 10_000, "app": Starlette()}
    assert len(bytes(build_http_error(scope, HTTPException(404)).body)) < 500


def test_an_invalid_parameter_is_named() -> None:
    """The message says where and why."""
    error = RequestValidationError([{"loc": ("query", "pageSize"), "msg": "Input should be a valid integer", "type": "int_parsing"}])
    assert describe_invalid(error) == "The request is not valid: query.pageSize: Input should be a valid integer."

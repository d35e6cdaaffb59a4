"""What catalogs say of themselves, and what they leave out: how they are asked then; without Spark."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.pipeline.common.rest import Rest, RestCatalog, TableIdent, open_rest
from duckicelake.pipeline.transfer.catalogs import Entry, EntryKind
from duckicelake.pipeline.transfer.copies import Store
from duckicelake.pipeline.transfer.rest import RestSide
from tests.support.reference.front import Answer, Came, format_answer, listening, refuse

STORE = Store(RestCatalog("", "", "http://lake", "r", "k", "s"), {}, lambda _, __: True)
VIEWS = "GET /v1/{prefix}/namespaces/{namespace}/views"


class Catalog:
    """Answers by the path with its query, and remembers what was asked; 404 for the rest."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self.answers = answers
        self.asked: list[str] = []
        self.came: list[Came] = []

    def __call__(self, came: Came) -> Answer:
        """Answer one request."""
        self.asked.append(came.target)
        self.came.append(came)
        told = self.answers.get(came.target)
        if isinstance(told, int):
            return refuse(told, "no")
        return refuse(404, "nothing there") if told is None else format_answer(200, told)


def list_with(answers: Mapping[str, Any], properties: Mapping[str, str] | None = None) -> tuple[list[Entry], list[str]]:
    """What a catalog lists, and what it was asked."""
    catalog = Catalog(answers)
    with listening(catalog) as uri:
        rest = open_rest(RestCatalog(uri, "", properties=properties or {}))
        return list(RestSide("other", lambda: rest, STORE, {}).list_entries()), catalog.asked


def test_a_prefix_stands_in_paths_as_it_came() -> None:
    """It may have several segments, and signs that are written already; headers and another address come with it."""
    config = {"defaults": {"header.X-From": "default", "prefix": "p"}, "overrides": {"prefix": "catalogs/a%20b", "header.X-Over": "1"}}
    there = Catalog({"/iceberg/v1/catalogs/a%20b/x": {"found": 1}})
    with listening(there) as moved:
        config["overrides"]["uri"] = f"{moved}/iceberg/"
        here = Catalog({"/v1/config?warehouse=w%20%26": config})
        with listening(here) as uri:
            rest = open_rest(RestCatalog(uri, "w &", properties={"header.X-From": "me"}))
            assert rest.ask("GET", "x") == {"found": 1}
    assert {name: there.came[0].headers.get(name) for name in ("x-from", "x-over")} == {"x-from": "me", "x-over": "1"}


@pytest.mark.parametrize(
    ("overrides", "path"),
    [
        pytest.param({"namespace-separator": "%2E"}, "a%2Eb.c%2F%2Ed", id="said"),
        pytest.param(None, "a%1Fb.c%2F%1Fd", id="not-said"),
        pytest.param({"namespace-separator": None}, "a%1Fb.c%2F%1Fd", id="null"),
    ],
)
def test_levels_are_separated_as_the_catalog_says(overrides: Any, path: str) -> None:
    """Each level for itself, with the separator as it was written; in queries it is read first."""
    with listening(Catalog({"/v1/config": {"defaults": None, "overrides": overrides}})) as uri:
        rest = open_rest(RestCatalog(uri, ""))
    assert rest.format_namespace(("a", "b.c/", "d")) == path
    assert rest.locate(TableIdent(("a",), "t/ü")) == "namespaces/a/tables/t%2F%C3%BC"


def test_lists_come_page_by_page() -> None:
    """As large as they are asked for; a page without a word of a next one is the last."""
    answers: dict[str, Any] = {
        "/v1/config": {"endpoints": ["GET v1/config"]},
        "/v1/namespaces?pageSize=1&pageToken=": {"namespaces": [["a"]], "next-page-token": "x y"},
        "/v1/namespaces?pageSize=1&pageToken=x%20y": {"namespaces": [["b"]], "next-page-token": None},
        "/v1/namespaces?parent=a&pageSize=1&pageToken=": {"namespaces": []},
        "/v1/namespaces?parent=b&pageSize=1&pageToken=": {"namespaces": []},
        "/v1/namespaces/a/tables?pageSize=1&pageToken=": {"identifiers": [], "next-page-token": ""},
        "/v1/namespaces/b/tables?pageSize=1&pageToken=": {"identifiers": [{"namespace": ["b"], "name": "t"}]},
    }
    entries, asked = list_with(answers, {"rest-page-size": "1"})
    assert entries == [Entry(TableIdent(("b",), "t"))]
    assert sorted(asked) == sorted(answers)


@pytest.mark.parametrize(
    ("endpoints", "views", "asks"),
    [
        pytest.param([VIEWS], {"identifiers": [{"namespace": ["a"], "name": "v"}]}, True, id="served"),
        pytest.param(["GET v1/config"], {"identifiers": [{"namespace": ["a"], "name": "v"}]}, False, id="not-served"),
        pytest.param(None, {"identifiers": [{"namespace": ["a"], "name": "v"}]}, True, id="says-nothing"),
        pytest.param(None, 400, True, id="says-nothing-and-refuses"),
        pytest.param(None, 405, True, id="says-nothing-and-has-no-such-method"),
    ],
)
def test_views_are_asked_for_where_there_may_be_some(endpoints: list[str] | None, views: Any, asks: bool) -> None:
    """What a catalog says that it serves counts; where it says nothing, a refusal means that it has none."""
    path = "/v1/namespaces/a/views?pageToken="
    answers = {
        "/v1/config": {} if endpoints is None else {"endpoints": endpoints},
        "/v1/namespaces?pageToken=": {"namespaces": [["a"]]},
        # It takes no notice of the parent.
        "/v1/namespaces?parent=a&pageToken=": {"namespaces": [["a"]]},
        "/v1/namespaces/a/tables?pageToken=": {"identifiers": [{"namespace": ["a"], "name": "t"}]},
        path: views,
    }
    entries, asked = list_with(answers)
    found = [Entry(TableIdent(("a",), "v"), EntryKind.view)] if asks and not isinstance(views, int) else []
    assert entries == [Entry(TableIdent(("a",), "t")), *found]
    assert (path in asked) == asks


@pytest.mark.parametrize("answer", [400, 403, {"identifiers": None}, {"identifiers": [{"namespace": ["a"]}]}])
def test_a_namespace_that_cannot_be_listed_is_an_entry_of_its_own(answer: Any) -> None:
    """The others are listed as ever."""
    answers = {
        "/v1/config": {"endpoints": []},
        "/v1/namespaces?pageToken=": {"namespaces": [["a"], ["b"]]},
        "/v1/namespaces?parent=a&pageToken=": {"namespaces": []},
        "/v1/namespaces?parent=b&pageToken=": {"namespaces": []},
        "/v1/namespaces/a/tables?pageToken=": answer,
        "/v1/namespaces/b/tables?pageToken=": {"identifiers": [{"namespace": ["b"], "name": "t"}]},
    }
    entries, _ = list_with(answers)
    assert [(one.ident, bool(one.fault)) for one in entries] == [(TableIdent((), "a"), True), (TableIdent(("b",), "t"), False)]


@pytest.mark.parametrize("config", [[], {"defaults": ["x"]}, {"endpoints": {}}, {"overrides": "x"}])
def test_a_configuration_of_another_shape_is_told(config: Any) -> None:
    """In a sentence, as all that a catalog gets wrong."""
    with listening(Catalog({"/v1/config": config})) as uri, pytest.raises(BadRequest, match="config"):
        open_rest(RestCatalog(uri, ""))


def test_a_store_of_the_catalogs_is_not_the_lakes() -> None:
    """Keys that the catalog lends are for its own store, unless a property says where that is; Spark gets them from the catalog."""
    lent = {"s3.access-key-id": "lent", "s3.secret-access-key": "x"}
    assert STORE.format_own(lent) == {"s3.path-style-access": "true"}
    assert STORE.format_own({}) == {
        "s3.path-style-access": "true",
        "s3.endpoint": "http://lake",
        "client.region": "r",
        "s3.access-key-id": "k",
        "s3.secret-access-key": "s",
    }
    named = Store(STORE.lake, {"s3.endpoint": "http://there"}, STORE.put_new)
    assert named.format_own(lent) == {"s3.path-style-access": "true", "s3.endpoint": "http://there"}


def test_a_catalog_that_signs_itself_lends_nothing() -> None:
    """Spark asks it to sign; for what is written beside it somebody has to give keys."""
    signs = {"s3.remote-signing-enabled": "true", "s3.signer.uri": "http://there", "s3.endpoint": "http://s3"}
    assert STORE.format_own(signs) == {"s3.path-style-access": "true"}
    for use in (STORE.format_settings, lambda keys: STORE.open("s3://b/t", keys)):
        with pytest.raises(Unsupported, match="s3.access-key-id .* --properties"):
            use(signs)
    given = {"s3.access-key-id": "a", "s3.secret-access-key": "b"}
    told = Store(STORE.lake, given, STORE.put_new).format_settings(signs)
    assert told == {"s3.path-style-access": "true", "s3.endpoint": "http://s3", **given}


def test_nothing_else_is_on_the_wire() -> None:
    """A body is JSON, and the answer to it may be nothing."""
    catalog = Catalog({"/v1/x": None})
    with listening(lambda came: (catalog(came), (204, b"", {}))[1]) as uri:
        assert Rest(f"{uri}/v1", RestCatalog("", "")).ask("POST", "x", {"a": 1}) is None
    assert json.loads(catalog.came[0].body) == {"a": 1}

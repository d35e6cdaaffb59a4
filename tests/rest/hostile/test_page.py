"""The OpenAPI page says what the server does: what stock clients send fits it, and so does every answer to what it allows."""

from collections.abc import Mapping
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance

from duckicelake.iceberg.requests import requirements, updates
from duckicelake.rest.openapi import TABLE_ACTIONS, TABLE_REQUIREMENTS, VIEW_ACTIONS, VIEW_REQUIREMENTS
from tests.rest.hostile.recorded import Recorded, fill, read_recorded
from tests.rest.hostile.target import Range, Target

CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance, status_code_conformance]
NAMES: Mapping[str, list[str]] = {
    "prefix": ["lake", "lake", "lake", "other"],
    "namespace": ["ns", "ns", "main", "none", "a\x1fb", "a/b"],
    "table": ["t", "t", "u", "fresh", "none", "ü 'x"],
    "view": ["v", "v", "t", "none"],
}
"""Names that lead somewhere: of random ones nothing is ever there."""


def test_every_action_and_requirement_is_on_the_page() -> None:
    """What is read and what is shown are the same."""
    assert TABLE_ACTIONS.keys() == updates._TABLE_ACTIONS.keys()
    assert VIEW_ACTIONS.keys() == updates._VIEW_ACTIONS.keys()
    assert TABLE_REQUIREMENTS.keys() | VIEW_REQUIREMENTS.keys() == requirements._TYPES.keys()


def find_body(page: Any, item: Recorded) -> Any:
    """The shape of a recorded request's body."""
    parts = f"v1/lake/{item.path}".split("/")
    for template, methods in page["paths"].items():
        named = template.strip("/").split("/")
        if len(named) == len(parts) and all(a == b or a.startswith("{") for a, b in zip(named, parts, strict=True)):
            return methods[item.method.lower()]["requestBody"]["content"]["application/json"]["schema"]
    raise AssertionError(item.path)


def test_what_clients_send_fits_the_page(targets: Range) -> None:
    """Every request that a stock client was recorded with."""
    target = targets.target()
    page = target.client.server.get("/openapi.json").json
    for item in read_recorded():
        if item.body is not None:
            jsonschema_rs.validate(find_body(page, item), fill(item.body, target.words()))


def narrow(page: Any) -> Any:
    """The page with names that lead somewhere."""
    for methods in page["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in NAMES and parameter["in"] == "path":
                    parameter["schema"] = {"type": "string", "enum": NAMES[parameter["name"]]}
    return page


def choose_cases(target: Target) -> st.SearchStrategy[schemathesis.Case]:
    """Requests that the page allows, and some that it does not."""
    schema = schemathesis.openapi.from_dict(narrow(target.client.server.get("/openapi.json").json))
    operations = [found.ok() for found in schema.get_all_operations()]
    modes = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)
    return st.one_of([operation.as_strategy(generation_mode=modes[number % 4 == 3]) for operation in operations for number in range(4)])


@pytest.mark.whole
@pytest.mark.parametrize("count", [pytest.param(80, id="some"), pytest.param(3000, id="thousands", marks=pytest.mark.long)])
def test_answers_are_as_the_page_says(targets: Range, count: int) -> None:
    """Of status, type and shape; no 5xx, and nothing changed by what is refused."""

    @settings(max_examples=count, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=choose_cases(targets.target()))
    def send(case: schemathesis.Case) -> None:
        target = targets.target()
        response = case.call(base_url=target.client.server.uri)
        case.validate_response(response, checks=CHECKS)
        target.check_change(response.status_code)

    send()

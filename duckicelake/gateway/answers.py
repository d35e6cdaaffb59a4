"""Answers of the upstream that are not passed on byte for byte: configuration, signer endpoints and keys, lists, errors. Pure.

Answers are searched as bytes first, so that the common one is neither parsed nor copied. `rest/layers/forwarding.py` and `upstream` call
this on the event loop.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from duckicelake.access.grants import Levels
from duckicelake.errors import BadRouteAnswer
from duckicelake.gateway.forwarding import rewrite_endpoint

NOT_PASSED = frozenset(
    {
        *("uri", "prefix", "warehouse", "token", "credential", "oauth2-server-uri", "scope", "audience", "resource"),
        *("nessie.core-base-uri", "nessie.catalog-base-uri", "nessie.iceberg-base-uri"),
    }
)
"""Properties that would lead a client around this server, or to another account."""
NOT_PASSED_PREFIXES = ("header.", "rest.")
SECRETS = ("s3.access-key-id", "s3.secret-access-key", "s3.session-token", "gcs.oauth2.token", "gcs.service.key", "azure.account-key")
SECRET_PREFIXES = ("adls.sas-token", "adls.connection-string", "adls.auth.shared-key", "adls.account-key", "client.credentials-provider")
DUCKLAKE = "ducklake-credentials"


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """The upstream's configuration. `prefix`: as it gives it, verbatim; empty for none. `body`: the whole answer."""

    prefix: str
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])


def parse_config(answer: bytes) -> UpstreamConfig:
    """Return the configuration in an upstream's answer.

    Nessie gives its prefix in the defaults, other catalogs in the overrides; overrides win. Raises: BadRouteAnswer.
    """
    try:
        body: Any = json.loads(answer)
    except ValueError as error:
        raise BadRouteAnswer("The catalog behind the route answers /v1/config with something that is not JSON.") from error
    if not isinstance(body, dict):
        raise BadRouteAnswer("The catalog behind the route answers /v1/config with JSON that is not an object.")
    found = cast(dict[str, Any], body)
    prefix = read_properties(found, "overrides").get("prefix") or read_properties(found, "defaults").get("prefix") or ""
    if any(part in (".", "..") for part in prefix.split("/")) or any(letter in prefix for letter in "?#\r\n "):
        raise BadRouteAnswer(f"The catalog behind the route has a prefix that fits in no path: {prefix[:100]!r}.")
    return UpstreamConfig(prefix.strip("/"), found)


def read_properties(body: Mapping[str, Any], part: str) -> dict[str, str]:
    """Return the properties of one part of a configuration; anything that is not a string is left out."""
    found = body.get(part)
    named = cast(dict[str, Any], found) if isinstance(found, dict) else {}
    return {name: value for name, value in named.items() if isinstance(value, str)}


def rewrite_config(config: UpstreamConfig, prefix: str | None, *, has_keys: bool) -> dict[str, Any]:
    """Return the configuration for a client. `prefix` None: that of the upstream, for requests that are passed on unchanged.

    `has_keys`: the client may have the storage keys that the upstream gives with its configuration.
    """
    parts = {part: filter_properties(read_properties(config.body, part), has_keys=has_keys) for part in ("defaults", "overrides")}
    if prefix is None and config.prefix:
        prefix = config.prefix
    if prefix is not None:
        parts["overrides"]["prefix"] = prefix
    answer: dict[str, Any] = dict(parts)
    if isinstance(endpoints := config.body.get("endpoints"), list):
        answer["endpoints"] = [each for each in cast(list[Any], endpoints) if isinstance(each, str) and not each.endswith(DUCKLAKE)]
    if isinstance(lifetime := config.body.get("idempotency-key-lifetime"), str):
        answer["idempotency-key-lifetime"] = lifetime
    return answer


def filter_properties(properties: Mapping[str, str], *, has_keys: bool) -> dict[str, str]:
    """Return the properties that clients of a route get."""
    kept = {name: value for name, value in properties.items() if name not in NOT_PASSED and not name.startswith(NOT_PASSED_PREFIXES)}
    return kept if has_keys else without_secrets(kept)


def without_secrets(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return properties without storage keys."""
    return {name: value for name, value in properties.items() if name not in SECRETS and not name.startswith(SECRET_PREFIXES)}


ENDPOINTS = (
    *("signer.endpoint", "s3.signer.endpoint", "client.refresh-credentials-endpoint", "refresh-credentials-endpoint"),
    *("gcs.oauth2.refresh-credentials-endpoint", "adls.refresh-credentials-endpoint"),
)
"""Properties that hold a path or URL of the catalog, to which clients send requests with their token."""
SIGNER_URIS = ("signer.uri", "s3.signer.uri")
"""Properties that hold the base of such a path. Without them clients use the catalog's own URI."""
ACCOUNTS = ("token", "credential", "oauth2-server-uri")
FOUND_BY = (b'signer.uri"', b'signer.endpoint"', b'refresh-credentials-endpoint"')
ACCOUNTS_FOUND_BY = tuple(b'"%b"' % name.encode() for name in ACCOUNTS)
SECRETS_FOUND_BY = (b'"storage-credentials"', *(b'"%b' % name.encode() for name in (*SECRETS, *SECRET_PREFIXES)))
ESCAPED = b"\\u"
"""JSON may write any letter of a name as an escape."""
MARKUP = re.compile(r"<[^>]*>|\s+")
SHOWN_LETTERS = 200

Shows = Callable[[Levels], bool]


@dataclass(frozen=True, slots=True)
class AnswerRules:
    """The limits of an answer. `uri`, `upstream_prefix`: the upstream's; `prefix`: ours, None if clients use the upstream's own.

    `has_keys`: the caller may have storage keys. `has_accounts`: the caller authenticates at the upstream itself.
    """

    uri: str
    upstream_prefix: str
    prefix: str | None
    has_keys: bool
    has_accounts: bool


def rewrite_answer(body: bytes, rules: AnswerRules) -> bytes:
    """Return the answer with endpoints that lead through this server; the same object if nothing has to change.

    Raises: BadRouteAnswer: it is not JSON
    """
    wanted = FOUND_BY + (() if rules.has_accounts else ACCOUNTS_FOUND_BY) + (() if rules.has_keys else SECRETS_FOUND_BY)
    if not any(text in body for text in wanted) and ESCAPED not in body:
        return body
    node = parse_object(body)
    is_changed = _rewrite_member(node, rules)
    credentials = node.get("storage-credentials")
    if isinstance(credentials, list):
        if not rules.has_keys:
            del node["storage-credentials"]
            is_changed = True
        else:
            for each in cast(list[Any], credentials):
                is_changed = (isinstance(each, dict) and _rewrite_member(cast(dict[str, Any], each), rules)) or is_changed
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass") if is_changed else body


def _rewrite_member(node: dict[str, Any], rules: AnswerRules) -> bool:
    """Rewrite the `config` of an object in place; True if it has changed."""
    config = node.get("config")
    if not isinstance(config, dict):
        return False
    before = cast(dict[str, Any], config)
    after = node["config"] = rewrite_properties(before, rules)
    return before != after


def rewrite_properties(config: Mapping[str, Any], rules: AnswerRules) -> dict[str, Any]:
    """Return the configuration of a table, view or key. Endpoints that are not the upstream's are left out."""
    kept = dict(config) if rules.has_keys else without_secrets(config)
    for name in () if rules.has_accounts else ACCOUNTS:
        kept.pop(name, None)
    for name in ENDPOINTS:
        if isinstance(value := kept.get(name), str):
            base = kept.get(name.replace("endpoint", "uri"))
            whole = value if "://" in value or not isinstance(base, str) else f"{base.rstrip('/')}/{value.lstrip('/')}"
            kept[name] = rewrite_endpoint(whole, rules.uri, rules.upstream_prefix, rules.prefix)
    for name in SIGNER_URIS:
        kept.pop(name, None)
    return {name: value for name, value in kept.items() if value is not None or name not in ENDPOINTS}


def filter_namespaces(body: bytes, is_shown: Shows) -> bytes:
    """Return a list of namespaces without those that the caller may not see. Raises: BadRouteAnswer."""
    node = parse_object(body)
    node["namespaces"] = [each for each in get_list(node, "namespaces") if is_shown(to_levels(each))]
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def filter_identifiers(body: bytes, is_shown: Callable[[Levels, str], bool]) -> bytes:
    """Return a list of tables or views without those that the caller may not see. Raises: BadRouteAnswer."""
    node = parse_object(body)
    node["identifiers"] = [each for each in get_list(node, "identifiers") if is_shown(*to_identifier(each))]
    return json.dumps(node, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "surrogatepass")


def parse_object(body: bytes) -> dict[str, Any]:
    """Return the JSON object of an answer. Raises: BadRouteAnswer."""
    try:
        node: Any = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise BadRouteAnswer("The catalog behind the route answers with something that is not JSON.") from error
    if not isinstance(node, dict):
        raise BadRouteAnswer("The catalog behind the route answers with JSON that is not an object.")
    return cast(dict[str, Any], node)


def get_list(node: Mapping[str, Any], name: str) -> list[Any]:
    """Return a list in an answer, empty if it is missing."""
    found = node.get(name)
    return cast(list[Any], found) if isinstance(found, list) else []


def to_levels(node: Any) -> Levels:
    """Return the levels of a namespace in an answer. Raises: BadRouteAnswer."""
    if not isinstance(node, list) or not all(isinstance(level, str) for level in cast(list[Any], node)):
        raise BadRouteAnswer("The catalog behind the route names a namespace that is not a list of texts.")
    return tuple(cast(list[str], node))


def to_identifier(node: Any) -> tuple[Levels, str]:
    """Return namespace and name of a table or view in an answer. Raises: BadRouteAnswer."""
    named = cast(dict[str, Any], node) if isinstance(node, dict) else {}
    name = named.get("name")
    if not isinstance(name, str):
        raise BadRouteAnswer("The catalog behind the route lists something without a name.")
    return to_levels(named.get("namespace")), name


def is_iceberg_error(body: bytes) -> bool:
    """True if an answer has the shape of Iceberg's errors, or of OAuth's."""
    try:
        node: Any = json.loads(body)
    except (ValueError, RecursionError):
        return False
    error = cast(dict[str, Any], node).get("error") if isinstance(node, dict) else None
    return isinstance(error, str) or (isinstance(error, dict) and isinstance(cast(dict[str, Any], error).get("message"), str))


def describe_answer(body: bytes) -> str:
    """Return the beginning of a text or an HTML page as one line, for an error message."""
    return MARKUP.sub(" ", body[: 20 * SHOWN_LETTERS].decode("utf-8", "replace")).strip()[:SHOWN_LETTERS]

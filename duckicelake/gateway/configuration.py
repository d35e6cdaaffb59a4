"""The upstream's answer to `GET /v1/config`, and what clients of the route get of it. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from duckicelake.errors import BadRouteAnswer

NOT_PASSED = frozenset({"uri", "prefix", "warehouse", "token", "credential", "oauth2-server-uri", "scope", "audience", "resource"})
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

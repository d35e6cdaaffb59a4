"""The description of a route: where the other catalog is, how this server authenticates there, and what callers may do. Pure values.

`app.build_gateway` builds one for each route in the settings, when a server starts or `duckicelake check` runs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from duckicelake.access.grants import Grants
from duckicelake.access.policy import LakePolicy

AuthMode = Literal["none", "passthrough", "bearer", "basic", "oauth2", "sigv4", "exchange"]
KeyReceivers = Literal["writers", "readers"]


@dataclass(frozen=True, slots=True)
class RouteSecrets:
    """The credentials that this server sends to the upstream, by auth mode.

    `token`: bearer. `credential`: `user:password` for basic, `client-id:secret` for oauth2 and exchange. `access_key_id` and
    `secret_access_key` None: the default chain of AWS.
    """

    token: str | None = field(default=None, repr=False)
    credential: str | None = field(default=None, repr=False)
    access_key_id: str | None = None
    secret_access_key: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class TokenService:
    """The token endpoint for oauth2 and exchange. `uri` None: the upstream's own `v1/oauth/tokens`."""

    uri: str | None = None
    scope: str = "catalog"
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts, and the number of connections of one server process.

    `timeout_s`: the longest silence of the upstream. `max_parsed_bytes`: the largest answer that is held in memory to be searched.
    """

    timeout_s: float = 60.0
    connect_s: float = 5.0
    max_connections: int = 100
    max_parsed_bytes: int = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Route:
    """One route. Its name is the warehouse and the prefix that clients use.

    `warehouse`: the upstream's warehouse, None: its default. `grants`: rights on the upstream's objects that settings give. `lake_name`:
    the lake whose accounts may have such rights; empty for none. `namespaces` None: all are served. `vended_keys`: who may get storage
    keys from the upstream. `required`: `/readyz` needs the upstream.
    """

    name: str
    uri: str
    warehouse: str | None = None
    auth: AuthMode = "none"
    secrets: RouteSecrets = RouteSecrets()
    tokens: TokenService = TokenService()
    region: str = "us-east-1"
    signing_name: str = "execute-api"
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Limits = Limits()
    read_only: bool = False
    namespaces: Grants | None = None
    required: bool = False
    ca_file: str | None = None
    grants: LakePolicy = LakePolicy()
    lake_name: str = ""
    vended_keys: KeyReceivers = "writers"

    @property
    def token_uri(self) -> str:
        """The endpoint for tokens."""
        return self.tokens.uri or f"{self.uri.rstrip('/')}/v1/oauth/tokens"

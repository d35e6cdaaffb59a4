"""The settings, read once into a frozen `Settings`: from the environment (`DUCKICELAKE_*`), else `.env`, else a TOML file.

The command line reads them once at its start; files of secrets are read later, by those who use them (`read_secret_file`).
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    DotEnvSettingsSource,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)
from pydantic_settings import (
    SettingsError as PydanticSettingsError,
)

from duckicelake.errors import CatalogError

PREFIX = "DUCKICELAKE_"
DEFAULT_CONFIG = "duckicelake.toml"
LOCAL_NAMES = ("localhost", "localhost.localdomain", "ip6-localhost")
WAREHOUSE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
RESERVED_NAMES = frozenset({"config", "oauth", "aws", "namespaces", "tables", "views", "transactions"})
LOCATION_PATTERN = r"^(\*|s3[an]?://.+|(file:)?/.*)$"

_SERVICE_LINK = re.compile(r".*_(SERVICE_HOST|SERVICE_PORT(_[A-Z0-9_]+)?|PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)")
_SERVICE_ADDRESS = re.compile(r"(tcp|udp|sctp)://.*")

Locations = tuple[Annotated[str, Field(pattern=LOCATION_PATTERN)], ...]
"""Folders as URIs or absolute paths; `*` allows every location."""


VendedLifetime = Annotated[int, Field(ge=900, le=43_200)]
"""The range that AWS STS allows."""


PLACE_PATTERN = r"^((host|hostaddr|port|dbname|sslmode|sslrootcert|channel_binding)=[^\s'\\]+(\s+|$))+$"
PublicPostgres = Annotated[str, Field(pattern=PLACE_PATTERN)]
"""Connection parameters of Postgres without user and password."""


PublicUrl = Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s?#]*)?$")]
"""The server's URL for clients: scheme, host, port, and the path prefix that a proxy removes."""


class SettingsError(CatalogError):
    """A setting is unknown, malformed or contradicts another; the message names it."""


class LakeSettings(BaseModel):
    """The settings of one lake. Values that the lake itself stores may be None.

    `data_path` None: that of the lake's metadata. `iceberg_path` None: the path stored in the lake, else a sibling folder of DATA_PATH.
    `s3_endpoint` None: AWS. Keys None: AWS' default chain, or no S3 at all. `restored_max_bytes` None: the value stored in the lake.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(pattern=WAREHOUSE_PATTERN)
    postgres_dsn: SecretStr
    metadata_schema: str
    data_path: str | None = None
    iceberg_path: str | None = None
    allowed_locations: Locations = ()
    s3_endpoint: str | None = None
    s3_public_endpoint: str | None = None
    s3_region: str = "us-east-1"
    s3_access_key_id: str | None = None
    s3_secret_access_key: SecretStr | None = None
    s3_signed_payloads: bool = False
    sts_role_arn: str | None = None
    sts_endpoint: str | None = None
    sts_external_id: str | None = None
    vended_lifetime_s: VendedLifetime = 3600
    restored_max_bytes: int | None = Field(default=None, ge=0)
    ducklake_postgres: PublicPostgres | None = None
    purge_grace_hours: int = Field(default=0, ge=0, le=87_600)

    @model_validator(mode="after")
    def check_paths_and_keys(self) -> Self:
        """Refuse half a pair of keys, an endpoint that is no URL, and an ICEBERG_PATH below DATA_PATH."""
        if (self.s3_access_key_id is None) != (self.s3_secret_access_key is None):
            raise ValueError("s3_access_key_id and s3_secret_access_key belong together; set both or none")
        for name, url in (("s3_endpoint", self.s3_endpoint), ("s3_public_endpoint", self.s3_public_endpoint)):
            if url is not None and urlsplit(url).scheme not in ("http", "https"):
                raise ValueError(f"{name} {url!r} is not a URL like http://127.0.0.1:9000")
        if self.data_path and self.iceberg_path and with_slash(self.iceberg_path).startswith(with_slash(self.data_path)):
            raise ValueError("iceberg_path is below data_path, where DuckLake removes unknown files; choose a folder outside data_path")
        return self


class LakeSection(BaseModel):
    """One `[lakes.NAME]` table of the TOML file.

    A missing value is taken from the top level, the two S3 keys only as a pair. `data_path` and `iceberg_path` belong to one lake, so they
    are never taken from there.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    postgres_dsn: SecretStr | None = None
    metadata_schema: str | None = None
    data_path: str | None = None
    iceberg_path: str | None = None
    allowed_locations: Locations | None = None
    s3_endpoint: str | None = None
    s3_public_endpoint: str | None = None
    s3_region: str | None = None
    s3_access_key_id: str | None = None
    s3_secret_access_key: SecretStr | None = None
    s3_signed_payloads: bool | None = None
    sts_role_arn: str | None = None
    sts_endpoint: str | None = None
    sts_external_id: str | None = None
    vended_lifetime_s: VendedLifetime | None = None
    restored_max_bytes: int | None = Field(default=None, ge=0)
    ducklake_postgres: PublicPostgres | None = None
    purge_grace_hours: int | None = Field(default=None, ge=0, le=87_600)


class IssuerSettings(BaseModel):
    """One `[[oidc_issuers]]` table: an external issuer of tokens. `access.issuers` describes the fields and checks them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    issuer: str
    audience: str = Field(min_length=1)
    algorithms: tuple[str, ...] = Field(("RS256", "ES256"), min_length=1)
    principal_claim: str = Field("sub", min_length=1)
    roles_claim: str | None = Field(None, min_length=1)
    roles: dict[str, str] = Field(default_factory=dict[str, str])
    clients: tuple[str, ...] = ()
    clock_skew_s: int = Field(60, ge=0, le=300)
    ca_file: Path | None = None


class RouteSettings(BaseModel):
    """One `[routes.NAME]` table: another Iceberg REST catalog. `gateway.route` describes the fields."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    uri: PublicUrl
    warehouse: str | None = Field(None, min_length=1)
    auth: Literal["none", "passthrough", "bearer", "basic", "oauth2", "sigv4", "exchange"] = "none"
    token: SecretStr | None = None
    token_file: Path | None = None
    credential: SecretStr | None = None
    credential_file: Path | None = None
    oauth2_uri: PublicUrl | None = None
    scope: str = "catalog"
    oauth2_parameters: dict[str, str] = Field(default_factory=dict[str, str])
    region: str = "us-east-1"
    signing_name: str = "execute-api"
    access_key_id: str | None = None
    secret_access_key: SecretStr | None = None
    headers: dict[Annotated[str, Field(pattern=r"^[A-Za-z0-9-]+$")], Annotated[str, Field(pattern=r"^[ -~]*$")]] = Field(
        default_factory=dict[str, str]
    )
    timeout_s: float = Field(60.0, gt=0, le=3600)
    connect_s: float = Field(5.0, gt=0, le=300)
    max_connections: int = Field(100, ge=1, le=10_000)
    read_only: bool = False
    namespaces: tuple[str, ...] | None = None
    required: bool = False
    ca_file: Path | None = None
    grants: tuple[str, ...] = ()
    lake: str | None = None
    vended_keys: Literal["writers", "readers"] = "writers"

    @model_validator(mode="after")
    def check_secrets(self) -> Self:
        """Refuse an auth mode without its secret, and secrets that the mode does not use."""
        wanted = {"bearer": ("token",), "basic": ("credential",), "oauth2": ("credential",), "exchange": ("credential",)}.get(self.auth, ())
        for field in ("token", "credential"):
            given = [name for name in (field, f"{field}_file") if getattr(self, name) is not None]
            if len(given) > 1:
                raise ValueError(f"{field} and {field}_file are both set; set one of them")
            if given and field not in wanted:
                raise ValueError(f"auth = {self.auth!r} uses no {field}; remove {given[0]}, or choose another auth")
            if field in wanted and not given and self.auth != "exchange":
                raise ValueError(f"auth = {self.auth!r} needs {field} or {field}_file")
        if (self.access_key_id is None) != (self.secret_access_key is None):
            raise ValueError("access_key_id and secret_access_key belong together; set both or none")
        if self.access_key_id is not None and self.auth != "sigv4":
            raise ValueError(f"auth = {self.auth!r} uses no AWS keys; remove access_key_id, or set auth = 'sigv4'")
        return self


class WebhookSettings(BaseModel):
    """The table `[events.webhook]`: where the events of all lakes are sent. `gateway.webhook` sends them.

    `secret`: `whsec_` and base64, or a text. `batch_max`: so many events in one request; 1 sends each by itself.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+(/[^\s#]*)?$")]
    secret: SecretStr | None = None
    secret_file: Path | None = None
    batch_max: int = Field(100, ge=1, le=1000)
    timeout_s: float = Field(10.0, gt=0, le=300)
    ca_file: Path | None = None

    @model_validator(mode="after")
    def check_secret(self) -> Self:
        """Refuse a webhook without a secret: its receiver could not detect forged events."""
        if (self.secret is None) == (self.secret_file is None):
            raise ValueError("set secret or secret_file, and not both: requests are signed with it")
        return self


class EventsSettings(BaseModel):
    """The table `[events]`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    webhook: WebhookSettings | None = None


class Settings(BaseSettings):
    """All settings. Without `postgres_dsn` and `lakes`, `serve` runs its own Postgres and S3."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid", env_prefix_target="all", env_ignore_empty=True)

    config: Path | None = None
    host: str = "127.0.0.1"
    port: int = Field(8181, ge=1, le=65535)
    public_url: PublicUrl | None = None
    workers: int = Field(1, ge=1, le=64)
    home: Path = Field(default_factory=lambda: get_default_home(os.environ))
    store: Literal["auto", "minio", "seaweedfs", "none"] = "auto"
    postgres_port: int | None = Field(None, ge=1, le=65535)
    s3_port: int | None = Field(None, ge=1, le=65535)
    warehouse: str = Field("lake", pattern=WAREHOUSE_PATTERN)
    postgres_dsn: SecretStr | None = None
    metadata_schema: str = Field("public", min_length=1, max_length=63)
    data_path: str | None = None
    iceberg_path: str | None = None
    allowed_locations: Locations = ()
    s3_endpoint: str | None = None
    s3_public_endpoint: str | None = None
    s3_region: str = "us-east-1"
    s3_access_key_id: str | None = None
    s3_secret_access_key: SecretStr | None = None
    s3_signed_payloads: bool = False
    sts_role_arn: str | None = None
    sts_endpoint: str | None = None
    sts_external_id: str | None = None
    vended_lifetime_s: VendedLifetime = 3600
    restored_max_bytes: int | None = Field(default=None, ge=0)
    ducklake_postgres: PublicPostgres | None = None
    purge_grace_hours: int = Field(default=0, ge=0, le=87_600)
    cache_max: int = Field(1024, ge=0)
    cache_max_bytes: int = Field(256 * 1024 * 1024, ge=0)
    memory_max_bytes: int = Field(1024 * 1024 * 1024, ge=0)
    postgres_timeout_s: float = Field(60.0, gt=0, le=86_400)
    body_timeout_s: float = Field(60.0, gt=0, le=86_400)
    commit_queue_max: int = Field(256, ge=1, le=1_000_000)
    commit_queue_s: float = Field(20.0, gt=0, le=3_600)
    object_check_s: float = Field(60.0, ge=0, le=86_400)
    require_auth: bool = False
    oauth_clients: SecretStr | None = None
    oauth_clients_file: Path | None = None
    token_keys: SecretStr | None = None
    token_key_files: tuple[Path, ...] = ()
    oidc_issuers: tuple[IssuerSettings, ...] = ()
    credential: SecretStr | None = None
    credential_file: Path | None = None
    token_lifetime_s: int = Field(3600, ge=60, le=86_400)
    requests_per_s: float = Field(0.0, ge=0, le=1e6)
    requests_burst: int = Field(100, ge=1, le=1_000_000)
    audit_days: int = Field(90, ge=1, le=36_500)
    audit_reads: float = Field(0.0, ge=0, le=1)
    audit_reads_days: int = Field(30, ge=1, le=36_500)
    client_reports_max: int = Field(1000, ge=0, le=5000)
    log_format: Literal["plain", "json"] = "plain"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    insecure: bool = False
    lake_sections: dict[str, LakeSection] = Field(default_factory=dict[str, LakeSection], validation_alias="lakes")
    routes: dict[Annotated[str, Field(pattern=WAREHOUSE_PATTERN)], RouteSettings] = Field(default_factory=dict[str, RouteSettings])
    catch_all: str | None = None
    events: EventsSettings = Field(default_factory=EventsSettings)

    @model_validator(mode="after")
    def check_consistency(self) -> Self:
        """Refuse settings that contradict each other."""
        if self.postgres_dsn is not None and self.postgres_port is not None:
            raise ValueError("postgres_port is the embedded Postgres's, and postgres_dsn says there is none; set one of them")
        if self.s3_endpoint is not None and self.store in ("minio", "seaweedfs"):
            raise ValueError(f"store={self.store} starts an S3, and s3_endpoint says there is one; set one of them")
        if not self.insecure and not self.require_auth and not is_loopback(self.host):
            raise ValueError(
                f"host {self.host!r} is reachable from other machines and no authentication is configured: "
                "everybody there could read and change the lake. Bind to 127.0.0.1, or accept it with insecure (--insecure)"
            )
        self._check_paths()
        self._check_auth()
        self._check_routes()
        self._check_webhook()
        return self

    def _check_webhook(self) -> None:
        """Refuse a webhook that would send names of tables over an open network."""
        parts = urlsplit("https://" if self.events.webhook is None else self.events.webhook.url)
        if parts.scheme == "http" and not is_loopback(parts.hostname or "") and not self.insecure:
            raise ValueError("events.webhook.url is plain HTTP to another machine; use https, or accept it with insecure")

    def _check_paths(self) -> None:
        """Refuse paths that several lakes would share: DuckLake removes files that it does not know from a lake's data_path."""
        for field in ("data_path", "iceberg_path"):
            if self.lake_sections and getattr(self, field) is not None:
                raise ValueError(f"{field} at the top level would be every lake's; set it in the [lakes.NAME] tables")
        named = [(lake.name, with_slash(path)) for lake in self.lakes() for path in (lake.data_path, lake.iceberg_path) if path]
        for (name, path), (other, theirs) in combinations(named, 2):
            if name != other and (path.startswith(theirs) or theirs.startswith(path)):
                raise ValueError(
                    f"lakes.{name} and lakes.{other} have paths in one folder, {min(path, theirs, key=len)}; give each its own"
                )

    def _check_auth(self) -> None:
        """Refuse accounts without authentication, and with authentication locations where every principal could use all files."""
        has_clients = self.oauth_clients is not None or self.oauth_clients_file is not None
        if has_clients and not self.require_auth:
            raise ValueError("oauth_clients need require_auth=true; set it, or remove them")
        if self.oidc_issuers and not self.require_auth:
            raise ValueError("oidc_issuers need require_auth=true; set it, or remove them")
        if self.credential is not None and self.credential_file is not None:
            raise ValueError("credential and credential_file both say whose requests a command's are; set one of them")
        if self.requests_per_s and not self.require_auth:
            raise ValueError("requests_per_s limits each principal, so it needs require_auth=true")
        for field in ("name", "issuer"):
            if len({getattr(issuer, field) for issuer in self.oidc_issuers}) < len(self.oidc_issuers):
                raise ValueError(f"oidc_issuers: two of them have one {field}")
        if any("*" in lake.allowed_locations for lake in self.lakes()) and self.require_auth:
            raise ValueError("allowed_locations opens everything, and require_auth keeps apart who may do what; name folders instead")

    def _check_routes(self) -> None:
        """Refuse routes that a lake hides, that no principal may use, or that would send a secret over an open network."""
        lakes = set(self.lake_sections) or {self.warehouse}
        if self.catch_all is not None and self.catch_all not in self.routes:
            raise ValueError(f"catch_all names the route {self.catch_all!r}, and there is no [routes.{self.catch_all}]")
        for name, route in self.routes.items():
            if name in RESERVED_NAMES:
                raise ValueError(f"routes.{name} has a name that paths of the API have in that place; choose another one")
            if name in lakes:
                raise ValueError(f"routes.{name} has the name of a lake; requests could mean either one")
            if route.lake is not None and route.lake not in lakes:
                raise ValueError(f"routes.{name}.lake names the lake {route.lake!r}, and there is none")
            if (route.grants or route.lake) and not self.require_auth:
                raise ValueError(f"routes.{name} has grants, and they need require_auth=true; set it, or remove them")
            for field in ("uri", "oauth2_uri"):
                parts = urlsplit(getattr(route, field) or "https://")
                if parts.scheme == "http" and not is_loopback(parts.hostname or "") and not self.insecure:
                    raise ValueError(f"routes.{name}.{field} is plain HTTP to another machine; use https, or accept it with insecure")

    @property
    def embedded_postgres(self) -> bool:
        """True if `serve` runs its own Postgres."""
        return self.postgres_dsn is None and not self.lake_sections

    @property
    def embedded_store(self) -> bool:
        """True if `serve` runs its own S3: `store` names one, or no setting says where the files are."""
        if self.store in ("minio", "seaweedfs"):
            return True
        return self.store == "auto" and self.embedded_postgres and self.data_path is None and self.s3_endpoint is None

    def lakes(self) -> list[LakeSettings]:
        """Return all lakes; none with the embedded Postgres, whose address only a running stack knows."""
        if self.lake_sections:
            return [self._join(name, section) for name, section in sorted(self.lake_sections.items())]
        if self.postgres_dsn is None:
            return []
        return [self._join(self.warehouse, LakeSection())]

    def _join(self, name: str, section: LakeSection) -> LakeSettings:
        shared = {field: getattr(self, field) for field in LakeSection.model_fields}
        own = {field: value for field in LakeSection.model_fields if (value := getattr(section, field)) is not None}
        if section.s3_access_key_id is not None or section.s3_secret_access_key is not None:
            shared |= {"s3_access_key_id": None, "s3_secret_access_key": None}
        if (own.get("postgres_dsn") or shared["postgres_dsn"]) is None:
            raise ValueError(f"lakes.{name} has no postgres_dsn, and none is set at the top level")
        return LakeSettings(name=name, **shared | own)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the sources, strongest first: arguments, environment, `.env`, the TOML file that one of those names."""
        env_settings = EnvironmentSource(settings_cls)
        dotenv = DotEnvSettingsSource(settings_cls, env_file=".env", dotenv_filtering="match_prefix")
        named = next((found for source in (init_settings, env_settings, dotenv) if (found := source().get("config"))), None)
        if named is not None and not Path(named).is_file():
            raise SettingsError(f"The settings file {named} does not exist.")
        return (init_settings, env_settings, dotenv, TomlConfigSettingsSource(settings_cls, toml_file=named or DEFAULT_CONFIG))


class EnvironmentSource(EnvSettingsSource):
    """The environment without Kubernetes' service links."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        super().__init__(settings_cls)
        self.env_vars = {name: text for name, text in self.env_vars.items() if not is_service_link(name, text or "")}


def read_settings(arguments: Mapping[str, Any]) -> Settings:
    """Return the settings from the command line's arguments, the environment, `.env` and the TOML file.

    Arguments that are None count as not given.
    Raises: SettingsError: names every setting that is unknown, malformed or contradictory; never shows a value
    """
    _check_known(os.environ)
    try:
        return Settings(**{name: value for name, value in arguments.items() if value is not None})
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"The settings file is not TOML: {error}") from error
    except ValidationError as error:
        raise SettingsError("\n".join(_format_problem(problem["loc"], problem["msg"]) for problem in error.errors())) from error
    except PydanticSettingsError as error:
        raise SettingsError(
            f"A setting cannot be read: {error}. DUCKICELAKE_LAKES is a JSON object, settings of several values are JSON lists."
        ) from error


def read_secret_file(path: Path) -> str:
    """Return the text of a secrets file. Raises: SettingsError: it cannot be read."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"The file {path} cannot be read ({type(error).__name__}).") from error


def is_loopback(host: str) -> bool:
    """True if only this machine can reach a server that is bound to that host."""
    if host in LOCAL_NAMES:
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def get_default_home(environment: Mapping[str, str]) -> Path:
    """Return the default folder of the embedded Postgres and S3."""
    base = environment.get("XDG_DATA_HOME") or "~/.local/share"
    return Path(base).expanduser() / "duckicelake"


def with_slash(path: str) -> str:
    """Return the path with a trailing slash."""
    return path if path.endswith("/") else path + "/"


def list_setting_names() -> list[str]:
    """Return the names of all settings, as the TOML file spells them."""
    return [str(field.validation_alias or name) for name, field in Settings.model_fields.items()]


def is_service_link(name: str, text: str) -> bool:
    """Return True if an environment variable describes a Kubernetes Service whose name begins with `duckicelake`, and is not a setting.

    Kubernetes sets `DUCKICELAKE_SERVICE_HOST`, `DUCKICELAKE_PORT=tcp://…` and others in every container of such a Service's namespace.
    Source: Kubernetes documentation, «Service», environment variables
    """
    name = name.upper()
    if not name.startswith(PREFIX):
        return False
    return _SERVICE_LINK.fullmatch(name) is not None or (name.endswith("_PORT") and _SERVICE_ADDRESS.fullmatch(text) is not None)


def _check_known(environment: Mapping[str, str]) -> None:
    known = {(PREFIX + name).upper() for name in list_setting_names()}
    prefixed = (name for name, text in environment.items() if name.upper().startswith(PREFIX) and not is_service_link(name, text))
    unknown = sorted(name for name in prefixed if name.upper() not in known)
    if unknown:
        named = ", ".join(_suggest(name, known) for name in unknown)
        raise SettingsError(f"Unknown settings in the environment: {named}. Known: {', '.join(sorted(known))}.")


def _suggest(name: str, known: set[str]) -> str:
    """Return the name, with the most similar known name."""
    close = difflib.get_close_matches(name.upper(), known, 1, 0.8)
    return f"{name} (did you mean {close[0]}?)" if close else name


def _format_problem(where: tuple[int | str, ...], message: str) -> str:
    name = ".".join(str(part) for part in where)
    message = message.removeprefix("Value error, ")
    if message == "Extra inputs are not permitted":
        message = "there is no such setting"
    return f"{name}: {message}" if name else message

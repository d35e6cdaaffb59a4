"""Connection facts of a lake: addresses, paths and keys for `connect`, `smoke` and the Spark jobs, and the account of a command.

The command line and `commands` call this in the command's process. It reads versions, paths and branches from Postgres, and `check_answers`
connects to the server. `serve` writes its address to the home with it, and deletes that address when it stops.
The account's credential comes from the environment or a file, never from the command's arguments, which every user of the machine sees.
"""

import os
import socket
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from psycopg.conninfo import conninfo_to_dict, make_conninfo

from duckicelake.commands.embedded import format_command
from duckicelake.commands.prepare import connect_postgres, find_version, read_paths
from duckicelake.config import LakeSettings, Settings, SettingsError, read_secret_file
from duckicelake.embedded.ducklake import LakeAddress, S3Keys, format_attach
from duckicelake.embedded.home import Home, read_json, write_json
from duckicelake.embedded.processes import find_process
from duckicelake.errors import ServiceUnavailable
from duckicelake.lake.branches.registry import MAIN, find_branch
from duckicelake.lake.install import format_search_path
from duckicelake.store.uris import S3_SCHEMES

CONNECT_SECONDS = 3.0
HIDDEN = "…"
ACCOUNT_PLACEHOLDER = "ID:SECRET"
"""Placeholder for the credential in texts if the server requires an account and none is configured."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The connection facts of one lake. The field names follow the JSON form (`s3.endpoint`).

    `ducklake_version`: DuckLake's version of the lake, None if its Postgres does not answer.
    """

    catalog_uri: str
    warehouse: str
    prefix: str
    credential: str | None
    iceberg_path: str
    ducklake_attach: str
    ducklake_dsn: str
    ducklake_data_path: str
    ducklake_metadata_schema: str
    s3_endpoint: str | None
    s3_region: str
    s3_access_key_id: str | None
    s3_secret_access_key: str | None
    ducklake_version: str | None = None

    @property
    def token_uri(self) -> str:
        """The URI of the token endpoint."""
        return f"{self.catalog_uri}/v1/oauth/tokens"

    @property
    def is_lake(self) -> bool:
        """True if DuckDB can attach the warehouse as a DuckLake, False for a route to another catalog."""
        return bool(self.ducklake_dsn)

    @property
    def is_on_s3(self) -> bool:
        """True if the lake's Iceberg files are on S3."""
        return self.iceberg_path.partition("://")[0] in S3_SCHEMES

    def split_credential(self) -> tuple[str, str]:
        """Return the id and the secret of the account."""
        client_id, _, secret = (self.credential or ACCOUNT_PLACEHOLDER).partition(":")
        return client_id, secret

    def find_s3_keys(self) -> S3Keys | None:
        """Return the S3 keys as DuckDB takes them, or None when the lake has none."""
        if self.s3_access_key_id is None or self.s3_secret_access_key is None:
            return None
        return S3Keys(self.s3_endpoint, self.s3_region, self.s3_access_key_id, self.s3_secret_access_key)

    def format_json(self) -> dict[str, Any]:
        """Return the facts by dotted name (`s3.endpoint`); facts with a dot also as nested objects (`s3` → `endpoint`)."""
        flat = {_dotted(name): getattr(self, name) for name in Facts.__slots__ if name != "ducklake_version"}
        groups = {"ducklake": dict[str, Any](), "s3": dict[str, Any]()}
        for name, fact in flat.items():
            group, dot, rest = name.partition(".")
            if dot:
                groups[group][rest] = fact
        return flat | groups


def get_facts(settings: Settings, home: Home | None, warehouse: str | None) -> Facts:
    """Return the facts of the lake with that name, or of the only lake.

    A route has no facts of a lake; those are empty.
    Raises: SettingsError: there is no such lake, or there are several and `warehouse` is None
    """
    if warehouse in settings.routes:
        return replace(build_route_facts(warehouse, get_catalog_uri(settings, home)), credential=read_credential(settings))
    lake = choose_member(settings, warehouse)
    if lake.data_path is None or lake.iceberg_path is None:
        with connect_postgres(lake) as conn:
            lake = read_paths(conn, lake)
    return replace(read_facts(lake, get_catalog_uri(settings, home)), credential=read_credential(settings))


def choose_lake(settings: Settings, warehouse: str | None) -> LakeSettings:
    """Return the settings of the lake with that name, or of the only lake.

    Raises: SettingsError: there is no such lake, or there are several and `warehouse` is None
    """
    lakes = settings.lakes()
    chosen = [lake for lake in lakes if warehouse in (None, lake.name)]
    if len(chosen) != 1:
        unknown = "" if warehouse is None else f"There is no warehouse {warehouse!r}. "
        raise SettingsError(f"{unknown}Name one of these warehouses with --warehouse: {', '.join(lake.name for lake in lakes)}.")
    return chosen[0]


def name_branch(settings: Settings, warehouse: str | None, branch: str) -> str:
    """Return the warehouse of a branch of the lake with that name, or of the only lake; `main` is the lake itself.

    Raises: SettingsError: there is no such lake, or there are several and `warehouse` is None
    """
    lake = choose_lake(settings, warehouse)
    return lake.name if branch == MAIN else f"{lake.name}@{branch}"


def choose_member(settings: Settings, warehouse: str | None) -> LakeSettings:
    """Return the settings of the lake with that name, or of its branch if the name is like `lake@branch`.

    Raises: SettingsError: as `choose_lake`; the lake has no such branch
    """
    lake_name, mark, branch_name = (warehouse or "").partition("@")
    if not mark:
        return choose_lake(settings, warehouse)
    lake = choose_lake(settings, lake_name)
    with connect_postgres(lake) as conn:
        conn.execute(format_search_path(lake.metadata_schema))
        branch = find_branch(conn, branch_name)
    if branch is None:
        raise SettingsError(f"The lake {lake.name!r} has no branch {branch_name!r}; `{format_command('branch', 'list')}` lists them.")
    changed = {"metadata_schema": branch.schema_name, "data_path": branch.data_path, "iceberg_path": branch.iceberg_path}
    return lake.model_copy(update={"name": f"{lake.name}@{branch.name}"} | changed)


def build_route_facts(name: str, catalog_uri: str) -> Facts:
    """Return the facts of a route: clients need the server's address and the route's name."""
    lake = dict.fromkeys(("iceberg_path", "ducklake_attach", "ducklake_dsn", "ducklake_data_path", "ducklake_metadata_schema"), "")
    no_keys = dict.fromkeys(("credential", "s3_endpoint", "s3_access_key_id", "s3_secret_access_key"))
    return Facts(catalog_uri=catalog_uri, warehouse=name, prefix=quote(name, safe=""), s3_region="us-east-1", **lake, **no_keys)


def read_facts(lake: LakeSettings, catalog_uri: str) -> Facts:
    """Return the facts of a lake whose paths are known, with the version that its Postgres has of it."""
    return replace(format_facts(lake, catalog_uri), ducklake_version=find_version(lake))


def format_facts(lake: LakeSettings, catalog_uri: str) -> Facts:
    """Return the facts of a lake whose paths are known."""
    dsn, secret = lake.postgres_dsn.get_secret_value(), lake.s3_secret_access_key
    return Facts(
        catalog_uri=catalog_uri,
        warehouse=lake.name,
        prefix=quote(lake.name, safe=""),
        credential=None,
        iceberg_path=lake.iceberg_path or "",
        ducklake_attach=format_attach(LakeAddress(dsn, lake.metadata_schema)),
        ducklake_dsn=dsn,
        ducklake_data_path=lake.data_path or "",
        ducklake_metadata_schema=lake.metadata_schema,
        s3_endpoint=lake.s3_public_endpoint or lake.s3_endpoint,
        s3_region=lake.s3_region,
        s3_access_key_id=lake.s3_access_key_id,
        s3_secret_access_key=None if secret is None else secret.get_secret_value(),
    )


def hide_secrets(facts: Facts) -> Facts:
    """Return the facts with passwords and secret keys replaced, for places where other users can read them."""
    if not facts.is_lake:
        return replace(facts, credential=None if facts.credential is None else f"{facts.credential.partition(':')[0]}:{HIDDEN}")
    parts = conninfo_to_dict(facts.ducklake_dsn)
    dsn = make_conninfo(facts.ducklake_dsn, **({"password": HIDDEN} if "password" in parts else {}))
    return replace(
        facts,
        ducklake_dsn=dsn,
        ducklake_attach=format_attach(LakeAddress(dsn, facts.ducklake_metadata_schema)),
        s3_secret_access_key=None if facts.s3_secret_access_key is None else HIDDEN,
        credential=None if facts.credential is None else f"{facts.credential.partition(':')[0]}:{HIDDEN}",
    )


def build_shown_facts(facts: Facts, settings: Settings, *, show_secrets: bool) -> Facts:
    """Return the facts for a text: secrets only with `show_secrets`, and a placeholder for a credential that is needed and unknown."""
    shown = facts if show_secrets else hide_secrets(facts)
    return replace(shown, credential=ACCOUNT_PLACEHOLDER) if settings.require_auth and facts.credential is None else shown


def get_catalog_uri(settings: Settings, home: Home | None) -> str:
    """Return the catalog's URI: `public_url`, else the address of the server that runs on the home, else that of the settings."""
    if settings.public_url is not None:
        return format_catalog_uri(settings)
    found = None if home is None else read_json(home.server_path)
    if found is not None and _identify(found["server"]["pid"]) == found["server"]:
        return found["catalog_uri"]
    return format_catalog_uri(settings)


def check_answers(catalog_uri: str) -> None:
    """Check that a server listens at the catalog's address. Raises: ServiceUnavailable: none does; the message says how to start one."""
    address = urlsplit(catalog_uri)
    port = address.port or (443 if address.scheme == "https" else 80)
    try:
        socket.create_connection((address.hostname or "", port), CONNECT_SECONDS).close()
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ServiceUnavailable(f"No catalog answers at {catalog_uri}. Start it with `{format_command('serve')}` ({reason}).") from None


def remember_server(home: Home, catalog_uri: str) -> None:
    """Write this process and its URI to the home, where `connect` and `smoke` find it."""
    write_json(home.server_path, {"catalog_uri": catalog_uri, "server": _identify(os.getpid())})


def forget_server(home: Home) -> None:
    """Remove what `remember_server` wrote, unless another server has replaced it since."""
    found = read_json(home.server_path)
    if found is not None and found["server"] == _identify(os.getpid()):
        home.server_path.unlink(missing_ok=True)


def _identify(pid: int) -> dict[str, Any] | None:
    running = find_process(pid)
    return None if running is None else asdict(running)


def format_catalog_uri(settings: Settings) -> str:
    """Return the URI of a server with these settings: `public_url`, else the address for clients on this machine."""
    if settings.public_url is not None:
        return settings.public_url.rstrip("/")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host else f"http://{host}:{settings.port}"


def _dotted(name: str) -> str:
    group, _, rest = name.partition("_")
    return f"{group}.{rest}" if group in ("ducklake", "s3") else name


VARIABLE = "DUCKICELAKE_CREDENTIAL"
CREDENTIAL_SOURCES = f"{VARIABLE}, or a file that --credential-file names"


def read_credential(settings: Settings) -> str | None:
    """Return the `id:secret` of the settings or of the file that they name; None if they have neither.

    Raises: SettingsError: the file cannot be read, or its text is no such pair; the message does not show it
    """
    if settings.credential_file is not None:
        return _check(read_secret_file(settings.credential_file).strip(), f"the file {settings.credential_file}")
    return None if settings.credential is None else _check(settings.credential.get_secret_value(), "the setting credential")


def read_named_credential(file: Path | None, environment: Mapping[str, str]) -> str | None:
    """Return the `id:secret` of the option or the environment. The settings' own credential is only for the settings' server.

    Raises: SettingsError: as `read_credential`
    """
    if file is not None:
        return _check(read_secret_file(file).strip(), f"the file {file}")
    text = environment.get(VARIABLE)
    return None if text is None else _check(text, VARIABLE)


def get_credential(settings: Settings) -> str | None:
    """Return the credential, None if no account is required. Raises: SettingsError: an account is required and none is configured."""
    found = read_credential(settings)
    if found is None and settings.require_auth:
        raise SettingsError(f"The server asks for accounts (require_auth): say id:secret of one by {CREDENTIAL_SOURCES}.")
    return found


def _check(text: str, where: str) -> str:
    client_id, _, secret = text.partition(":")
    if not client_id or not secret or not text.isprintable():
        raise SettingsError(f"What is in {where} is no id:secret of an account.")
    return text

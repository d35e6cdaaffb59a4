"""Settings completed with the embedded stack: where it listens, and its keys."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from pydantic import SecretStr

from duckicelake.backends.buckets import BUCKET, StoreAccess
from duckicelake.backends.home import BackendError, Home, find_holder, open_home, read_json, read_keys
from duckicelake.backends.postgres import find_access
from duckicelake.backends.stack import Report, StackOptions, start_stack
from duckicelake.commands.calling import format_command
from duckicelake.config import Settings, read_settings

METADATA_SCHEMA = "lake"
DATA_PATH, ICEBERG_PATH = f"s3://{BUCKET}/data/", f"s3://{BUCKET}/iceberg/"


def plan_stack(settings: Settings, purpose: str) -> StackOptions:
    """Return which servers of our own these settings ask for."""
    return StackOptions(
        purpose=purpose,
        postgres=settings.embedded_postgres,
        store=settings.store if settings.embedded_store else "none",
        postgres_port=settings.postgres_port,
        s3_port=settings.s3_port,
    )


def is_embedded(settings: Settings) -> bool:
    """Say whether anything of the stack is our own."""
    return settings.embedded_postgres or settings.embedded_store


def join_home(settings: Settings, home: Home) -> Settings:
    """Return the settings with what the home knows of the embedded servers filled in; they need not run.

    Raises: BackendError: nothing was ever started on this home
    """
    if not is_embedded(settings):
        return settings
    keys, ports = read_keys(home), read_json(home.ports_path)
    if keys is None or ports is None:
        raise BackendError(f"The home {home.path} is empty. Run `duckicelake serve` or `duckicelake init` first.")
    found: dict[str, Any] = {}
    if settings.embedded_postgres:
        found["postgres_dsn"] = SecretStr(find_access(keys, ports["postgres"]).dsn)
        if "metadata_schema" not in settings.model_fields_set:
            found["metadata_schema"] = METADATA_SCHEMA
    if settings.embedded_store:
        found |= _list_store(settings, StoreAccess.on_loopback(keys, ports["s3"]))
    return settings.model_copy(update=found)


def read_joined(arguments: dict[str, Any]) -> tuple[Settings, Home]:
    """Return the settings of a command with what its home knows of the embedded servers, and that home.

    Raises: BackendError: the settings ask for embedded servers, and none run
    """
    settings = read_settings(arguments)
    opened = open_home(settings.home)
    return join_running(settings, opened), opened


def join_running(settings: Settings, home: Home) -> Settings:
    """Return the settings completed with the embedded servers that run on the home; start none.

    Raises: BackendError: none run; the message is the same for every command
    """
    if is_embedded(settings) and find_holder(home) is None:
        raise BackendError(
            f"Nothing runs on the home {home.path}. Start the server with `{format_command('serve')}`, "
            f"or Postgres and S3 alone with `{format_command('backends', 'up')}`; --home names another home."
        )
    return join_home(settings, home)


@contextmanager
def using_stack(settings: Settings, purpose: str, report: Report) -> Generator[Settings]:
    """The settings of a stack that runs: the one that already does, else one started while this is open, as `init` does."""
    if not is_embedded(settings):
        yield settings
        return
    home = open_home(settings.home)
    if find_holder(home) is not None:
        yield join_home(settings, home)
        return
    stack = start_stack(settings.home, plan_stack(settings, purpose), report)
    try:
        yield join_home(settings, home)
    finally:
        stack.stop()


def _list_store(settings: Settings, access: StoreAccess) -> dict[str, Any]:
    return {
        "s3_endpoint": access.endpoint,
        "s3_region": access.region,
        "s3_access_key_id": access.access_key_id,
        "s3_secret_access_key": SecretStr(access.secret_access_key),
        "data_path": settings.data_path or DATA_PATH,
        "iceberg_path": settings.iceberg_path or ICEBERG_PATH,
        "sts_role_arn": settings.sts_role_arn or access.role_arn,
    }

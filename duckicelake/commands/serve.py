"""`duckicelake serve`: the embedded stack, the lakes, the HTTP server; stopped in the opposite order."""

import logging
import secrets
from contextlib import ExitStack

from pydantic import SecretStr
from rich.console import Console

from duckicelake.app import open_accounts
from duckicelake.backends.home import Home, HomeLock, find_holder, open_home, write_private
from duckicelake.backends.ports import check_free
from duckicelake.backends.stack import Report, start_stack
from duckicelake.commands.backends import PURPOSE as BACKENDS_PURPOSE
from duckicelake.commands.embedded import is_embedded, join_home, plan_stack
from duckicelake.commands.facts import forget_server, format_catalog_uri, format_facts, name_somebody, remember_server
from duckicelake.commands.http.serving import serve_http
from duckicelake.commands.logs import configure_logging
from duckicelake.commands.prepare import prepare_lake
from duckicelake.commands.signals import stopping_on_signals
from duckicelake.commands.snippets import format_welcome
from duckicelake.config import LakeSettings, Settings, read_secret_file

PURPOSE = "serve"


def serve(settings: Settings, console: Console) -> None:
    """Serve every lake of the settings until SIGTERM or SIGINT, then stop HTTP, S3 and Postgres in this order.

    Raises: CatalogError: something cannot start; whatever was started is stopped again
    """
    configure_logging(settings.log_format, settings.log_level)
    log = logging.getLogger("duckicelake.serve")
    check_free(settings.port, "the catalog", "--port", settings.host)
    with stopping_on_signals(), ExitStack() as running:
        home = open_home(settings.home)
        if is_embedded(settings):
            settings = _start_embedded(settings, home, running, log.info)
        settings = join_token_key(settings, home)
        open_accounts(settings)
        running.callback(forget_server, home)
        lakes = [prepare_lake(lake, home.make_folder("extensions"), log.info) for lake in settings.lakes()]
        serve_http(settings, home, lambda: _announce(settings, home, lakes, console))


def _start_embedded(settings: Settings, home: Home, running: ExitStack, report: Report) -> Settings:
    server = HomeLock(home, "server")
    server.acquire(PURPOSE)
    running.callback(server.release)
    holder = find_holder(home)
    if holder is not None and holder[1] == BACKENDS_PURPOSE:
        report(f"using the Postgres and S3 of `duckicelake backends up` (pid {holder[0]})")
    else:
        stack = start_stack(home.path, plan_stack(settings, PURPOSE), report)
        running.callback(stack.stop)
    return join_home(settings, home)


def join_token_key(settings: Settings, home: Home) -> Settings:
    """Return the settings with a key for tokens, kept in the home: every worker and every next start knows it."""
    if not settings.require_auth or settings.token_keys is not None or settings.token_key_files:
        return settings
    kept = home.path / "token.key"
    if not kept.exists():
        write_private(kept, secrets.token_hex(32).encode())
    return settings.model_copy(update={"token_keys": SecretStr(read_secret_file(kept).strip())})


def _announce(settings: Settings, home: Home, lakes: list[LakeSettings], console: Console) -> None:
    uri = format_catalog_uri(settings)
    remember_server(home, uri)
    # What is no terminal is a log.
    shown = [name_somebody(format_facts(lake, uri), settings, show_secrets=console.is_terminal) for lake in lakes]
    console.print(format_welcome(shown), highlight=False, markup=False, soft_wrap=True)

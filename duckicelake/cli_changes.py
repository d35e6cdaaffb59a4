"""The commands of `duckicelake` for what was changed, dropped and read, and for functions: parses their arguments and calls `commands`.

`cli` adds them.
"""

from typing import Annotated

import typer

from duckicelake.cli_pipeline import ConfigOption, HomeOption, WarehouseOption
from duckicelake.commands.embedded import read_joined
from duckicelake.commands.facts import choose_member
from duckicelake.config import read_settings


def add_change_commands(cli: typer.Typer) -> None:
    """Add the commands `dropped`, `undrop`, `fill-defaults`, `events`, `reads`, `reports` and `functions`."""
    dropped = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Dropped tables and namespaces that can come back.")
    dropped.callback()(describe_dropped)
    dropped.command("list")(dropped_list)
    cli.add_typer(dropped, name="dropped")
    cli.command("undrop")(undrop)
    cli.command("fill-defaults")(fill_defaults)
    events = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What happened in a lake.")
    events.callback()(describe_events)
    events.command("tail")(events_tail)
    cli.add_typer(events, name="events")
    reads = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Who read what over REST.")
    reads.callback()(describe_reads)
    reads.command("list")(reads_list)
    cli.add_typer(reads, name="reads")
    reports = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What clients report of scans and commits.")
    reports.callback()(describe_reports)
    reports.command("list")(reports_list)
    reports.command("summary")(reports_summary)
    cli.add_typer(reports, name="reports")
    functions = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="DuckDB's macros as Iceberg clients load them.")
    functions.callback()(describe_functions)
    functions.command("list")(functions_list)
    functions.command("show")(functions_show)
    cli.add_typer(functions, name="functions")


def describe_dropped() -> None:
    """Dropped tables and namespaces that can come back."""


def dropped_list(
    most: Annotated[int, typer.Option(min=1, help="At most so many, the newest drops first.")] = 1000,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """List dropped tables and namespaces that DuckLake still has, with what stands against bringing them back."""
    settings = read_settings({"home": home, "config": config})
    from duckicelake.commands.management import list_lines  # noqa: PLC0415  the catalog takes a second to import

    lines = list_lines(settings, warehouse, most)
    for line in lines:
        typer.echo(line)
    if not lines:
        typer.echo("duckicelake: Nothing is dropped that DuckLake still has.", err=True)


def undrop(
    name: Annotated[str, typer.Argument(metavar="OBJECT", help="table:a.b.t or namespace:a.b, as `dropped list` names it.")],
    to: Annotated[
        str | None, typer.Option("--as", help="Another name to bring it back under: a.b.t of a table, a.b of a namespace.")
    ] = None,
    uuid: Annotated[str | None, typer.Option(help="The one with this uuid, when several of the name were dropped.")] = None,
    lake_snapshot: Annotated[
        int | None, typer.Option(min=0, help="The one that this lake snapshot dropped, as `dropped list` names it.", show_default="none")
    ] = None,
    with_namespace: Annotated[bool, typer.Option("--with-namespace", help="Bring the table's namespace back too if it is gone.")] = False,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Bring a dropped table or namespace back, with its history, uuid, properties, refs and grants."""
    settings = read_settings({"home": home, "config": config})
    from duckicelake.commands.management import UndropChoice  # noqa: PLC0415  the catalog takes a second to import
    from duckicelake.commands.management import undrop as bring_back  # noqa: PLC0415  as above

    for line in bring_back(settings, warehouse, name, UndropChoice(uuid, lake_snapshot, to, with_namespace)):
        typer.echo(line)


def fill_defaults(
    table: Annotated[str, typer.Argument(metavar="TABLE", help="A table as namespace.table; a dot within a name is written %2E.")],
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Write the defaults of added columns into the files that are older, for readers that know no defaults (Daft, ClickHouse, Flink)."""
    settings, opened = read_joined({"home": home, "config": config})
    from duckicelake.commands.fill_defaults import fill_defaults as fill  # noqa: PLC0415  DuckDB takes a second to import
    from duckicelake.commands.management import parse_levels, to_ident  # noqa: PLC0415  as above

    ident = to_ident(parse_levels(table))
    typer.echo(fill(choose_member(settings, warehouse), opened, (*ident.namespace, ident.name)))


def describe_events() -> None:
    """Show what happened in a lake."""


def events_tail(
    after: Annotated[
        str | None, typer.Option(help="A cursor: the last lake snapshot, or the id of the last event, that was read.", show_default="none")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for further events until the command is stopped.")] = False,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Print what each lake snapshot changed, by whomever, as CloudEvents: one line of JSON each."""
    settings = read_settings({"home": home, "config": config})
    from duckicelake.commands.management import tail  # noqa: PLC0415  the catalog takes a second to import

    for line in tail(settings, warehouse, after, follows=follow):
        typer.echo(line)


def describe_reads() -> None:
    """Show who read what over REST, if the server audits reads."""


def reads_list(
    name: Annotated[str | None, typer.Option("--object", help="Only reads of this table, view or function: a.b.t.")] = None,
    principal: Annotated[str | None, typer.Option(help="Only reads of this principal.")] = None,
    most: Annotated[int, typer.Option(min=1, help="At most so many, those that were written last first.")] = 1000,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Print who loaded, planned or got keys for what: one line of JSON for the equal reads of some seconds."""
    settings = read_settings({"home": home, "config": config})
    from duckicelake.commands.management import list_reads  # noqa: PLC0415  the catalog takes a second to import

    for line in list_reads(settings, warehouse, most, name, principal):
        typer.echo(line)


TableArgument = Annotated[str, typer.Argument(metavar="TABLE", help="The table: a.b.t.")]


def describe_reports() -> None:
    """Show what clients report of their scans of a table and commits to it."""


def reports_list(
    name: TableArgument,
    most: Annotated[int, typer.Option(min=1, help="At most so many, the newest first.")] = 100,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the reports on a table that are kept, one line of JSON each."""
    settings = read_settings({"home": home, "config": config})
    from duckicelake.commands.management import list_reports  # noqa: PLC0415  the catalog takes a second to import

    for line in list_reports(settings, warehouse, name, most):
        typer.echo(line)


def reports_summary(name: TableArgument, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Print sums over the reports on a table: scans, their commonest filters and columns, and commits."""
    settings = read_settings({"home": home, "config": config})
    from duckicelake.commands.management import summarize  # noqa: PLC0415  the catalog takes a second to import

    typer.echo(summarize(settings, warehouse, name))


def describe_functions() -> None:
    """Show DuckDB's macros as Iceberg clients load them."""


def functions_list(
    namespace: Annotated[str, typer.Argument(metavar="NAMESPACE", help="The namespace: a.b.")],
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Print the functions of a namespace with what is left out of each, and why: one line of JSON each."""
    settings = read_settings({"home": home, "config": config})
    from duckicelake.commands.management import list_functions  # noqa: PLC0415  the catalog takes a second to import

    for line in list_functions(settings, warehouse, namespace):
        typer.echo(line)


def functions_show(
    name: Annotated[str, typer.Argument(metavar="FUNCTION", help="The function: a.b.f.")],
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Print a function as clients load it: JSON of Iceberg's format of functions."""
    settings = read_settings({"home": home, "config": config})
    from duckicelake.commands.management import show_function  # noqa: PLC0415  the catalog takes a second to import

    typer.echo(show_function(settings, warehouse, name))

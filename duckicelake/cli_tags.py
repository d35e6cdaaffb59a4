"""The commands `duckicelake tag`: parses their arguments and calls `commands.branches`."""

from typing import Annotated

import typer

from duckicelake.cli_pipeline import ConfigOption, HomeOption, WarehouseOption
from duckicelake.commands.embedded import read_joined


def add_tag_commands(cli: typer.Typer) -> None:
    """Add the commands `tag create`, `tag list` and `tag delete`."""
    tags = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Tags of a whole lake: snapshots that stay, by name.")
    for name, command in {"create": tag_create, "list": tag_list, "delete": tag_delete}.items():
        tags.command(name)(command)
    cli.add_typer(tags, name="tag")


def tag_create(
    name: str,
    parent: Annotated[str, typer.Option("--from", help="The branch to tag; main is the lake itself.")] = "main",
    at: Annotated[str | None, typer.Option(help="A snapshot id of the lake, or a time, to tag.", show_default="the newest")] = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Tag a snapshot of the whole lake: it stays readable, and no expiry removes it."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import create_tag  # noqa: PLC0415  the catalog takes a second to import

    for line in create_tag(settings, warehouse, name, parent, at):
        typer.echo(line)


def tag_list(warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """List the tags of the lake."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import list_lines  # noqa: PLC0415  as above

    lines = list_lines(settings, warehouse, is_tag=True)
    for line in lines:
        typer.echo(line)
    if not lines:
        typer.echo("duckicelake: The lake has no tags.", err=True)


def tag_delete(name: str, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Delete a tag; its snapshot may expire then."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import delete  # noqa: PLC0415  as above

    for line in delete(settings, warehouse, name, is_tag=True):
        typer.echo(line)

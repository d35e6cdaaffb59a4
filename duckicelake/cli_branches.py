"""The commands `duckicelake branch` and `duckicelake tag`: parses their arguments and calls functions of `commands`. `cli` adds them."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from duckicelake.cli_pipeline import ConfigOption, HomeOption, WarehouseOption
from duckicelake.commands.embedded import read_joined


def add_branch_commands(cli: typer.Typer) -> None:
    """Add the commands `branch …` and `tag …`."""
    branches = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Branches of a whole lake, which copy no file.")
    for name, command in BRANCH_COMMANDS.items():
        branches.command(name)(command)
    cli.add_typer(branches, name="branch")
    tags = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Tags of a whole lake: snapshots that stay, by name.")
    for name, command in {"create": tag_create, "list": tag_list, "delete": tag_delete}.items():
        tags.command(name)(command)
    cli.add_typer(tags, name="tag")


def branch_create(
    name: str,
    parent: Annotated[str, typer.Option("--from", help="The branch to begin with; main is the lake itself.")] = "main",
    at: Annotated[str | None, typer.Option(help="A snapshot id, a time or a tag to begin with.", show_default="the newest")] = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Make a branch of the whole lake: its tables as they are, which the branch changes without changing the lake's."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import create  # noqa: PLC0415  the catalog takes a second to import

    for line in create(settings, warehouse, name, parent, at):
        typer.echo(line)


def branch_list(warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """List the branches of the lake."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import list_lines  # noqa: PLC0415  as above

    lines = list_lines(settings, warehouse)
    for line in lines:
        typer.echo(line)
    if not lines:
        typer.echo("duckicelake: The lake has no branches.", err=True)


def branch_delete(name: str, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Delete a branch; DuckLake's clean-up of the lake removes the files that only the branch had."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import delete  # noqa: PLC0415  as above

    for line in delete(settings, warehouse, name):
        typer.echo(line)


def branch_reset(name: str, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Let a branch forget what it changed, and begin again with the lake's newest snapshot."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import reset  # noqa: PLC0415  as above

    for line in reset(settings, warehouse, name):
        typer.echo(line)


def branch_rename(
    name: str, new_name: str, warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None
) -> None:
    """Give a branch another name; its METADATA_SCHEMA and its folders stay."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import rename  # noqa: PLC0415  as above

    for line in rename(settings, warehouse, name, new_name):
        typer.echo(line)


def branch_protect(
    name: Annotated[str, typer.Argument()] = "main", warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None
) -> None:
    """Let no account change the lake itself (main) over REST; its branches are changed, and merged."""
    _protect(name, warehouse, {"home": home, "config": config}, is_on=True)


def branch_unprotect(
    name: Annotated[str, typer.Argument()] = "main", warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None
) -> None:
    """End the protection of the lake itself (main)."""
    _protect(name, warehouse, {"home": home, "config": config}, is_on=False)


def _protect(name: str, warehouse: str | None, given: dict[str, Any], *, is_on: bool) -> None:
    settings, _ = read_joined(given)
    from duckicelake.commands.branches import protect  # noqa: PLC0415  as above

    for line in protect(settings, warehouse, name, is_on=is_on):
        typer.echo(line)


class ListFormat(StrEnum):
    """The forms of a list."""

    text = "text"
    json = "json"


FormatOption = Annotated[ListFormat, typer.Option("--format", help="Lines for people, or JSON.")]


def branch_log(
    name: Annotated[str, typer.Argument(help="A branch; main is the lake itself.")],
    limit: Annotated[int, typer.Option(min=1, max=1000, help="At most so many lake snapshots.")] = 100,
    form: FormatOption = ListFormat.text,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """List the lake snapshots of a branch, newest first, with what each did to which table."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import log  # noqa: PLC0415  as above

    for line in log(settings, warehouse, name, limit, as_json=form is ListFormat.json):
        typer.echo(line)


def branch_diff(
    old: Annotated[str, typer.Argument(metavar="FROM", help="The branch to compare with; main is the lake itself.")],
    new: Annotated[str, typer.Argument(metavar="TO", help="The branch that is compared.")],
    rows: Annotated[int | None, typer.Option(min=1, max=10_000, help="Show so many added and deleted rows of each table at most.")] = None,
    form: FormatOption = ListFormat.text,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Say what TO has that FROM has not, and the reverse: namespaces, tables and views; columns, files and rows of each table."""
    settings, opened = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import diff  # noqa: PLC0415  as above

    for line in diff(settings, warehouse, (old, new), None if rows is None else (opened, rows), as_json=form is ListFormat.json):
        typer.echo(line)


def branch_merge(
    name: Annotated[str, typer.Argument(help="The branch to merge; it goes on from the merge. main, or a parent branch: its news.")],
    into: Annotated[str, typer.Option(help="What to merge it into: main, the branch it was made of, or one made of it.")] = "main",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be merged, or what stands against it.")] = False,
    strategy: Annotated[str, typer.Option(help="auto, ff (only if what is merged into has no changes since), or three-way.")] = "auto",
    on_conflict: Annotated[
        str, typer.Option(help="cancel the merge, keep ours (the lake's or the parent's side), or take theirs (the branch's).")
    ] = "cancel",
    exceptions: Annotated[list[str] | None, typer.Option("--except", help="NAME=ours, NAME=theirs or NAME=cancel, for one object.")] = None,
    message: Annotated[str | None, typer.Option(help="The message of the lake snapshot.")] = None,
    form: FormatOption = ListFormat.text,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Merge a branch into what it was made of as one lake snapshot, or the reverse; or change nothing and name each conflict."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import build_request, merge  # noqa: PLC0415  as above

    request = build_request((name, into, strategy), on_conflict, exceptions or (), message)
    for line in merge(settings, warehouse, request, dry_run=dry_run, as_json=form is ListFormat.json):
        typer.echo(line)


def branch_revert(
    name: Annotated[str, typer.Argument(help="A branch; main is the lake itself.")],
    snapshot: Annotated[int, typer.Argument(help="The lake snapshot to take back, as `branch log` shows it; a merge is one, too.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be reverted, or what stands against it.")] = False,
    message: Annotated[str | None, typer.Option(help="The message of the lake snapshot.")] = None,
    form: FormatOption = ListFormat.text,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Take back what one lake snapshot changed, as a new one, or change nothing and name each conflict."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import revert  # noqa: PLC0415  as above

    for line in revert(settings, warehouse, (name, snapshot, message), dry_run=dry_run, as_json=form is ListFormat.json):
        typer.echo(line)


def branch_gc(warehouse: WarehouseOption = None, home: HomeOption = None, config: ConfigOption = None) -> None:
    """Schedule the files that the lake and its branches kept for each other and that none of them needs any longer."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import collect  # noqa: PLC0415  as above

    for line in collect(settings, warehouse):
        typer.echo(line)


BRANCH_COMMANDS = {
    "create": branch_create,
    "list": branch_list,
    "log": branch_log,
    "diff": branch_diff,
    "merge": branch_merge,
    "revert": branch_revert,
    "reset": branch_reset,
    "rename": branch_rename,
    "delete": branch_delete,
    "gc": branch_gc,
    "protect": branch_protect,
    "unprotect": branch_unprotect,
}


def tag_create(
    name: str,
    parent: Annotated[str, typer.Option("--from", help="The branch to tag; main is the lake itself.")] = "main",
    at: Annotated[str | None, typer.Option(help="A snapshot id, a time or a tag to tag.", show_default="the newest")] = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Tag a snapshot of the whole lake: it stays readable, and no expiry removes it."""
    settings, _ = read_joined({"home": home, "config": config})
    from duckicelake.commands.branches import create_tag  # noqa: PLC0415  as above

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

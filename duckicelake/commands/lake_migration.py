"""`duckicelake lake migrate`: a lake goes from DuckLake 1.0 to 1.1, or only what that would do is printed; called by the command line."""

import psycopg
from rich.console import Console

from duckicelake.commands.prepare import connect_postgres
from duckicelake.config import LakeSettings, SettingsError
from duckicelake.errors import Forbidden
from duckicelake.lake.install import format_search_path
from duckicelake.lake.writing.migrate import MigrationPlan, migrate, plan_migration


def migrate_lake(lake: LakeSettings, console: Console, *, is_dry_run: bool) -> bool:
    """Migrate a lake to DuckLake 1.1, or print what that would do; return False if something stands against it.

    Servers go on serving the lake; what they published before is published again where the migration changed it.
    Raises: Forbidden: the role does not own the lake's tables. SettingsError: there is no lake
    """
    with connect_postgres(lake) as conn:
        try:
            conn.execute(format_search_path(lake.metadata_schema))
            plan = plan_migration(conn)
            if not plan.is_done and not plan.obstacles and not is_dry_run:
                migrate(conn, lake.metadata_schema)
        except psycopg.errors.UndefinedTable as error:
            raise SettingsError(f"Lake {lake.name!r}: no DuckLake in schema {lake.metadata_schema!r}; run `duckicelake init`.") from error
        except psycopg.errors.InsufficientPrivilege as error:
            raise Forbidden(f"Lake {lake.name!r}: only the owner of DuckLake's tables may migrate them.") from error
    for line in _list_lines(lake.name, plan, is_dry_run=is_dry_run):
        console.print(line, markup=False, highlight=False, soft_wrap=True)
    return not plan.obstacles


def _list_lines(name: str, plan: MigrationPlan, *, is_dry_run: bool) -> list[str]:
    if plan.is_done:
        return [f"lake {name}: it has DuckLake 1.1 already; nothing was changed"]
    if plan.obstacles:
        return [f"lake {name}: it cannot be migrated yet; nothing was changed", *(f"  {text}" for text in plan.obstacles)]
    if not is_dry_run:
        return [f"lake {name}: migrated to DuckLake 1.1. DuckDB attaches it from version 2.0 on; DuckDB 1.5 does not any more."]
    return [
        f"lake {name}: nothing stands against the migration to DuckLake 1.1; nothing was changed",
        f"  It would rename the system columns of {len(plan.inlined_tables)} tables of inlined rows, add seven columns and one table, and "
        "clear the bounds of columns whose type was changed. No row, file or snapshot changes.",
        "  There is no way back: DuckDB 1.5 cannot attach the lake any more. Back up the database first.",
        f"  {plan.session_count} other sessions use the database. End every DuckDB 1.5 session that has attached the lake: it would go on "
        "writing rows of the old layout.",
    ]

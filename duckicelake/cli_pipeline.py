"""The commands of `duckicelake pipeline`: parses their arguments and calls `commands.jobs.start`.

`cli` adds them. Also the options that `cli`, `cli_branches` and `cli_changes` share.
"""

import os
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from duckicelake.commands.embedded import read_joined
from duckicelake.commands.facts import Facts, get_facts, read_named_credential
from duckicelake.commands.jobs.start import start_ingest, start_maintain, start_profile, start_publish, start_transfer, start_verify
from duckicelake.embedded.home import Home

ConfigOption = Annotated[Path | None, typer.Option(help="TOML file with settings.", show_default="./duckicelake.toml")]
HomeOption = Annotated[Path | None, typer.Option(help="Folder of the embedded Postgres and S3.")]
WarehouseOption = Annotated[str | None, typer.Option(help="Which lake, when several are served.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")]
ReportOption = Annotated[
    Path | None, typer.Option(help="Where to write what was done and found, as JSON; as metrics of Prometheus when it ends in .prom.")
]
MasterOption = Annotated[
    str, typer.Option(help="Spark's master, or sc://HOST:PORT of Spark Connect.", envvar="SPARK_REMOTE", show_envvar=True)
]
MemoryOption = Annotated[str, typer.Option(help="Memory of Spark's driver.")]
ConfOption = Annotated[list[str] | None, typer.Option(help="NAME=VALUE, a setting of Spark.")]
CredentialOption = Annotated[
    Path | None, typer.Option(help="File with the id:secret of an account (or DUCKICELAKE_CREDENTIAL); the catalog gives the keys.")
]
SourceFormOption = Annotated[str, typer.Option("--format", help="What PLACE is: auto, hadoop, jdbc, rest, hive, delta.")]
TargetFormOption = Annotated[str, typer.Option("--format", help="What PLACE is: auto, hadoop, jdbc, rest.")]
PropertyOption = Annotated[list[str] | None, typer.Option(help="NAME=VALUE of the other catalog, as Iceberg calls it: warehouse=…")]
PropertiesOption = Annotated[Path | None, typer.Option(help="TOML file of such properties, for secrets.")]
IntoOption = Annotated[str | None, typer.Option(help="Namespace to put before the source's.")]
GraceOption = Annotated[int, typer.Option(min=1, help="How many hours another run may be silent before what it wrote is removed.")]
NoVerifyOption = Annotated[bool, typer.Option("--no-verify", help="Do not compare the rows afterwards.")]


def build_pipeline() -> typer.Typer:
    """Return the jobs as commands."""
    about = "Jobs on Spark: heavy work that writes through REST (docs/pipeline.md)."
    pipeline = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help=about)
    pipeline.callback()(describe_pipeline)
    for command in (ingest, maintain, profile, publish, verify):
        pipeline.command()(command)
    pipeline.command("import")(import_tables)
    pipeline.command("export")(export_tables)
    return pipeline


def describe_pipeline() -> None:
    """Jobs on Spark: heavy work that writes through REST like any other client."""


def ingest(
    source: Annotated[
        str, typer.Argument(help="A file, folder or pattern, here or on s3://; a database, jdbc:…; or a URI that Spark can read.")
    ],
    table: Annotated[str, typer.Argument(help="namespace.table; made when it is missing.")],
    form: Annotated[str, typer.Option("--format", help="auto, csv, json (lines), parquet, orc, avro.")] = "auto",
    mode: Annotated[str, typer.Option(help="append, overwrite-partitions, upsert, scd2.")] = "append",
    key: Annotated[str, typer.Option(help="Columns by which upsert and scd2 know a row: a,b.")] = "",
    order_by: Annotated[
        str | None, typer.Option(help="Of rows with one key the last by this column counts; scd2: from when on a row holds.")
    ] = None,
    schema: Annotated[str | None, typer.Option(help="The columns of the files: 'id BIGINT NOT NULL, name STRING'.")] = None,
    evolve: Annotated[str, typer.Option(help="What may change of the table's columns: fail, add, widen (and add).")] = "fail",
    changed: Annotated[str, typer.Option(help="A file that was taken and is another one now: refuse, skip, take.")] = "refuse",
    partition_by: Annotated[str, typer.Option(help="Of a new table: 'day(seen), bucket(16, id), city'.")] = "",
    sort_by: Annotated[str, typer.Option(help="Of a new table: 'city, seen desc'.")] = "",
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE for Spark's reader: sep=;, dbtable=…; of S3: s3.endpoint=…")] = None,
    properties: Annotated[Path | None, typer.Option(help="TOML file of such options, for secrets.")] = None,
    incremental_by: Annotated[str | None, typer.Option(help="Of a database: take rows with more in this column than was taken.")] = None,
    max_quarantined: Annotated[int | None, typer.Option(help="Take nothing when more rows than that are bad.")] = None,
    follow: Annotated[bool, typer.Option("--follow", help="Go on as a service: take what comes, batch by batch.")] = False,
    poll: Annotated[float | None, typer.Option(help="--follow looks again that many seconds after it found nothing: 10.")] = None,
    settle: Annotated[
        float | None, typer.Option(help="--follow leaves files that changed in the last so many seconds for later: 2.")
    ] = None,
    batch_files: Annotated[int | None, typer.Option(help="--follow takes at most that many files at once: 1000.")] = None,
    max_batches: Annotated[int | None, typer.Option(help="--follow ends after that many batches.")] = None,
    follow_for: Annotated[float | None, typer.Option(help="--follow ends after that many seconds and the batch under way.")] = None,
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "2g",
    conf: ConfOption = None,
    uri: Annotated[str | None, typer.Option(help="Another catalog than the one that runs here.")] = None,
    credential_file: CredentialOption = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Take files into a table, each once; status 0 done, 1 nothing was taken, 2 misuse, 3 unknown (run it again)."""
    arguments = {"home": home, "config": config, "credential_file": credential_file}
    given = locals() | {"credential": partial(read_named_credential, credential_file, os.environ), "environment": os.environ}
    raise typer.Exit(start_ingest(given, partial(get_lake, arguments, warehouse)))


def verify(
    tables: Annotated[list[str] | None, typer.Argument(help="namespace.table; none: every table of the catalog.")] = None,
    snapshot: Annotated[int | None, typer.Option(help="Compare the rows at this snapshot of one table, not as they are now.")] = None,
    every_snapshot: Annotated[bool, typer.Option("--every-snapshot", help="Compare the rows at every snapshot too.")] = False,
    files: Annotated[bool, typer.Option("--files", help="Look at the files instead: are they what is said of them?")] = False,
    examples: Annotated[int, typer.Option(help="How many rows of a difference to show, of each side.")] = 5,
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "2g",
    conf: ConfOption = None,
    credential_file: CredentialOption = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Compare tables as Iceberg and as DuckLake, row by row; status 0 the same, 1 not, 2 misuse, 3 could not look."""
    arguments = {"home": home, "config": config, "credential_file": credential_file}
    raise typer.Exit(start_verify(locals(), partial(get_lake, arguments, warehouse)))


def maintain(
    tables: Annotated[
        list[str] | None, typer.Argument(help="namespace.table; none: every table, and the lake's snapshots and files.")
    ] = None,
    policy: Annotated[Path | None, typer.Option(help="TOML file that says what is wanted (docs/pipeline/maintain.md).")] = None,
    watch: Annotated[float | None, typer.Option(help="Go on as a service: again that many seconds after each round.")] = None,
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "2g",
    conf: ConfOption = None,
    credential_file: CredentialOption = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Compact, flush, expire and clean up, as policies say; status 0 done or nothing to do, 1 something could not be done, 2 misuse."""
    arguments = {"home": home, "config": config, "credential_file": credential_file}
    raise typer.Exit(start_maintain(locals(), partial(get_lake, arguments, warehouse)))


def profile(
    tables: Annotated[list[str] | None, typer.Argument(help="namespace.table; none: every table.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Compute statistics of snapshots that have some, too.")] = False,
    partitions: Annotated[bool, typer.Option("--partitions", help="Count the rows and files of partitions too.")] = False,
    html: Annotated[Path | None, typer.Option(help="Where to write the report as a page with plots.")] = None,
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "2g",
    conf: ConfOption = None,
    credential_file: CredentialOption = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Measure tables, and give planners their distinct values; status 0 done or nothing to do, 1 something could not be done, 2 misuse."""
    arguments = {"home": home, "config": config, "credential_file": credential_file}
    raise typer.Exit(start_profile(locals(), partial(get_lake, arguments, warehouse)))


def publish(
    tables: Annotated[list[str] | None, typer.Argument(help="namespace.table; none: every table.")] = None,
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "2g",
    conf: ConfOption = None,
    credential_file: CredentialOption = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Make manifests of tables with very many files on Spark; status 0 done or nothing to do, 1 something could not be done, 2 misuse."""
    arguments = {"home": home, "config": config, "credential_file": credential_file}
    raise typer.Exit(start_publish(locals(), partial(get_lake, arguments, warehouse)))


def import_tables(
    place: Annotated[
        str,
        typer.Argument(
            help="A folder, here or on s3:// (a Hadoop warehouse; Parquet files by --format hive, Delta tables by --format delta), "
            "http://…, postgresql://… or sqlite:///…."
        ),
    ],
    tables: Annotated[list[str] | None, typer.Argument(help="namespace.table in the source; none: every table and view.")] = None,
    form: SourceFormOption = "auto",
    mode: Annotated[str, typer.Option(help="register: where they are, with history; copy: the present rows.")] = "register",
    history: Annotated[bool, typer.Option("--history", help="Insist on history, which copies, hive and delta do not have.")] = False,
    into: IntoOption = None,
    property: PropertyOption = None,
    properties: PropertiesOption = None,
    no_verify: NoVerifyOption = False,
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "2g",
    conf: ConfOption = None,
    credential_file: CredentialOption = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Bring the tables and views of another catalog in; status 0 done or there already, 1 something could not be done, 2 misuse."""
    arguments = {"home": home, "config": config, "credential_file": credential_file}
    raise typer.Exit(start_transfer("import", locals(), partial(get_lake, arguments, warehouse)))


def export_tables(
    place: Annotated[str, typer.Argument(help="A warehouse folder, here or on s3://, http://…, postgresql://… or sqlite:///….")],
    tables: Annotated[list[str] | None, typer.Argument(help="namespace.table; none: every table, and views where they can go.")] = None,
    form: TargetFormOption = "auto",
    into: IntoOption = None,
    property: PropertyOption = None,
    properties: PropertiesOption = None,
    no_verify: NoVerifyOption = False,
    grace: GraceOption = 72,
    dry_run: DryRunOption = False,
    report: ReportOption = None,
    master: MasterOption = "local[*]",
    memory: MemoryOption = "2g",
    conf: ConfOption = None,
    credential_file: CredentialOption = None,
    warehouse: WarehouseOption = None,
    home: HomeOption = None,
    config: ConfigOption = None,
) -> None:
    """Copy tables into another catalog; status 0 done or there already, 1 something could not be done, 2 misuse."""
    arguments = {"home": home, "config": config, "credential_file": credential_file}
    raise typer.Exit(start_transfer("export", locals(), partial(get_lake, arguments, warehouse)))


def get_lake(arguments: dict[str, Any], warehouse: str | None) -> tuple[Facts, Home]:
    """Return how a job reaches the lake, and the home. Raises: CatalogError: nothing runs there, or the settings are refused."""
    settings, opened = read_joined(arguments)
    return get_facts(settings, opened, warehouse), opened

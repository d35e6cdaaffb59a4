"""The rows that each mode writes to the target's branch, checked before anything is created and counted afterwards."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from duckicelake.errors import BadRequest, CatalogError
from duckicelake.pipeline.common.rest import TableHead
from duckicelake.pipeline.common.spark_compat import SUMMARIZES_MERGES, checkpoint_rows
from duckicelake.pipeline.common.spark_sql import quote_ident
from duckicelake.pipeline.common.staging import Stage, Staged, check_count
from duckicelake.pipeline.ingest import merging
from duckicelake.pipeline.ingest.options import IngestMode, IngestOptions
from duckicelake.pipeline.ingest.row_checks import CheckedRows, RowCount, RowRules, check_rows, count_by_file
from duckicelake.pipeline.ingest.source import Reading, check_order, compute_coverage

_MERGED = "spark.merge-into.num-target-rows-"


class RowsLeftOut(CatalogError):
    """Rows that were not checked before they were written are bad."""


@dataclass(frozen=True, slots=True)
class DraftBasis:
    """The state of the table that a draft is for: its columns that come from files, which of them are UUIDs, and for merges its snapshot.

    `reads_otherwise`: these are others by the names and defaults of now than by those of their snapshot.
    `is_planned`: something of the table has yet to be made, so what is there is looked at too, if it could be in the way.
    """

    columns: StructType
    uuids: Sequence[str]
    base: int | None
    reads_otherwise: bool = False
    is_planned: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True)
class WriteDraft:
    """The rows that are going to be written, counted by file; `merged` are those of a merge, which changes `applied` rows of the table.

    `grown`: how many rows the table is going to have more by a merge, if that was counted.
    """

    basis: DraftBasis
    checked: CheckedRows
    counts: Mapping[str, RowCount]
    merged: DataFrame | None = None
    applied: int = 0
    grown: int | None = None

    @property
    def rows_in(self) -> int:
        return sum(count.rows for count in self.counts.values())

    @property
    def bad(self) -> int:
        return sum(count.bad for count in self.counts.values())

    @property
    def good(self) -> int:
        return self.rows_in - self.bad

    @property
    def superseded(self) -> int:
        """Return how many rows others of the same key stand for."""
        return 0 if self.merged is None else self.good - self.applied

    @property
    def counted(self) -> Mapping[str, int]:
        """The rows by their names in the report."""
        rows_out = self.good - self.superseded
        return {"rows_in": self.rows_in, "rows_out": rows_out, "rows_quarantined": self.bad, "rows_superseded": self.superseded}


def get_basis(options: IngestOptions, columns: StructType, head: TableHead | None) -> DraftBasis:
    """Return what a draft goes by, of a table that has these columns, or is going to have them."""
    if head is None:
        return DraftBasis(columns, (), None)
    return DraftBasis(columns, head.uuids, head.main, head.reads_otherwise) if options.key else DraftBasis(columns, head.uuids, None)


def draft_rows(stage: Stage, options: IngestOptions, reading: Reading, checked: CheckedRows, basis: DraftBasis) -> WriteDraft:
    """Return the rows that were checked, counted, with all that can be wrong with them; nothing is changed.

    Raises: BadRequest: they are not what they seem to be, or contradict each other or what the table has, or too many are bad
    """
    stage.progress("count rows")
    draft = WriteDraft(basis, checked, count_by_file(checked, reading))
    if options.max_quarantined is not None and draft.bad > options.max_quarantined:
        raise BadRequest(f"{draft.bad} rows are bad, more than --max-quarantined {options.max_quarantined}; nothing was taken")
    if options.mode is IngestMode.upsert:
        return _draft_latest(stage, options, draft)
    if options.mode is IngestMode.scd2:
        return _draft_versions(stage, options, draft)
    if options.mode is IngestMode.overwrite_partitions and basis.is_planned and stage.connect().load(options.table) is not None:
        _format_unpartitioned(stage, options)
    return draft


def check_values(options: IngestOptions, reading: Reading, incoming: StructType, basis: DraftBasis, *, looks_at_texts: bool) -> CheckedRows:
    """Return the rows as those of the table, not yet read, by what each of them has."""
    needed = options.key if options.mode is not IngestMode.scd2 else (*options.key, options.order_by or "")
    return check_rows(reading, incoming, basis.columns, RowRules(needed, basis.uuids, looks_at_texts))


def check_source(options: IngestOptions, reading: Reading, incoming: StructType, basis: DraftBasis, *, looks_at_texts: bool) -> CheckedRows:
    """Return the rows of the source as rows of the table, not yet read. Raises: BadRequest: there is nothing to order some of them by"""
    checked = check_values(options, reading, incoming, basis, looks_at_texts=looks_at_texts)
    if not options.key:
        return checked
    coverage = compute_coverage(basis.columns, reading.list_column_sets(incoming))
    check_order(coverage, options.order_by)
    return replace(checked, coverage=coverage)


def _draft_latest(stage: Stage, options: IngestOptions, draft: WriteDraft) -> WriteDraft:
    checked, base = draft.checked, draft.basis.base
    latest = merging.select_latest(checked.marked(), options.key, options.order_by, checked.coverage.marks)
    applied = grown = latest.count()
    if base is not None:
        held = _read_held(stage, options, draft.basis, base)
        if options.order_by is not None:
            applied -= merging.count_older(latest, held, options.key, options.order_by)
        is_asked = draft.basis.is_planned or not SUMMARIZES_MERGES
        grown = grown - merging.count_known(held, latest, options.key) if is_asked else None
    return replace(draft, merged=latest, applied=applied, grown=grown)


def _draft_versions(stage: Stage, options: IngestOptions, draft: WriteDraft) -> WriteDraft:
    checked, base = draft.checked, draft.basis.base
    history = merging.History(checked.target, options.key, options.order_by or "")
    if base is None:
        current = checked.good().where(F.lit(False))
    else:
        held = _read_held(stage, options, draft.basis, base).where(merging.CURRENT)
        current = merging.fill_columns(checkpoint_rows(held) if draft.basis.reads_otherwise else held, checked.target)
    inserted, ended = merging.build_versions(checked.marked(), current, history, checked.coverage)
    applied = inserted.count()
    return replace(draft, merged=merging.format_source(inserted, ended, options.key), applied=applied, grown=applied)


def write_target(stage: Stage, options: IngestOptions, opened: Staged, draft: WriteDraft) -> Staged:
    """Write the good rows; the branch after that.

    Raises: RowsLeftOut: some were bad, of those that were not looked at before
        BadRequest: what was written is not what was counted
    """
    table, checked = options.table, draft.checked
    if draft.merged is not None:
        return _write_merged(stage, options, opened, draft, draft.merged)
    if options.mode is IngestMode.overwrite_partitions:
        _replace_partitions(stage, options, checked.good())
    else:
        stage.append(table, checked.good())
    written = stage.look_after(opened)
    if checked.is_sifted and not checked.may_be_bad and written.added < draft.good:
        raise RowsLeftOut(f"{draft.good - written.added} rows have texts that are not in UTF-8")
    check_count(written, draft.good)
    return written


def _write_merged(stage: Stage, options: IngestOptions, opened: Staged, draft: WriteDraft, source: DataFrame) -> Staged:
    name, checked = stage.name(options.table), draft.checked
    if options.mode is IngestMode.upsert:
        keyed = merging.MergeTarget(name, options.key, options.order_by)
        statement, kinds = merging.format_merge(_name_view(stage), keyed, checked.target, checked.coverage), ("inserted", "updated")
    else:
        history = merging.History(checked.target, options.key, options.order_by or "")
        statement, kinds = merging.format_versions_merge(name, _name_view(stage), history), ("inserted",)
    _merge(stage, options, source, statement)
    written = stage.look_after(opened)
    check_moved(opened, written, draft.applied)
    check_merged(written, draft.applied, *kinds)
    if draft.grown is not None:
        check_growth(opened, written, draft.grown)
    return written


def _replace_partitions(stage: Stage, options: IngestOptions, rows: DataFrame) -> None:
    """Write rows in place of all those of the same partitions, wherever these lie."""
    elsewhere = _format_unpartitioned(stage, options)
    if elsewhere is None:
        stage.overwrite_partitions(options.table, rows)
        return
    # Iceberg's own overwrite leaves files of other specs, such as inlined rows, which lie in no partition.
    theirs, ours = elsewhere
    values = [F.expr(value).alias(f"p{place}") for place, value in enumerate(theirs)]
    source = rows.alias("r").select(*values).distinct()
    _merge(stage, options, source, merging.format_removal(stage.name(options.table), _name_view(stage), ours))
    stage.append(options.table, rows)


def _format_unpartitioned(stage: Stage, options: IngestOptions) -> tuple[list[str], list[str]] | None:
    """Return the values of partitions of the files' rows and of the table's, as SQL, if some of the table's lie in none such.

    Raises: BadRequest: Spark cannot find these rows by their values
    """
    name, head = quote_ident(stage.catalog, options.table), stage.load(options.table)
    data = stage.spark.table(f"{name}.manifests").where(f"content = 0 AND partition_spec_id != {head.spec_id}")
    if data.where("added_data_files_count + existing_data_files_count > 0").isEmpty():
        return None
    if head.has_uuid_partitions:
        # Spark has them as texts: other buckets, and capital letters make other values.
        raise BadRequest(
            f"{options.table} has rows that lie in no partition or in earlier ones, which Spark cannot tell by a UUID; delete them first"
        )
    theirs, ours = (merging.format_partitions(stage.catalog, head.partitions, alias) for alias in ("r", "t"))
    return theirs, ours


def _read_held(stage: Stage, options: IngestOptions, basis: DraftBasis, base: int) -> DataFrame:
    name = quote_ident(stage.catalog, options.table)
    if basis.reads_otherwise:
        # A snapshot is read under the columns that it had, and main under those of now. Who moves it meanwhile fails the commit.
        return stage.spark.table(name)
    # Spark 4.1 finds no plan for a view that reads the table it is merged into, unless a snapshot is named, or its rows are held.
    return stage.spark.read.option("versionAsOf", base).table(name)


def _merge(stage: Stage, options: IngestOptions, source: DataFrame, statement: str) -> None:
    view = _name_view(stage)
    source.createOrReplaceTempView(view)
    try:
        stage.run(options.table, statement)
    finally:
        stage.spark.catalog.dropTempView(view)


def _name_view(stage: Stage) -> str:
    return f"merged_{stage.branch}"


def check_moved(opened: Staged, written: Staged, expected: int) -> None:
    """Raises: BadRequest: a merge that was given rows wrote nothing at all."""
    if expected and written.head == opened.head:
        raise BadRequest(f"{written.ident}: {expected} rows were to be merged, and nothing was written; nothing was taken")


def check_merged(written: Staged, expected: int, *kinds: str) -> None:
    """Raises: BadRequest: a merge did not touch as many rows as it was given, where Spark says how many it touched."""
    told = [int(written.summary.get(_MERGED + kind, "-1")) for kind in kinds]
    if min(told) >= 0 and sum(told) != expected:
        raise BadRequest(
            f"{written.ident}: {sum(told)} rows for {expected} keys; does the table have several rows of one key? Nothing was taken"
        )


def check_growth(opened: Staged, written: Staged, expected: int) -> None:
    """Raises: BadRequest: a merge left more or less rows than were counted, where the snapshots say how many there were and are."""
    if written.head == opened.head:
        grown = 0
    elif opened.is_whole and opened.rows is not None and written.rows is not None:
        grown = written.rows - opened.rows
    else:
        # Not all releases say in the summary what became of deletes of rewritten files.
        return
    if grown != expected:
        raise BadRequest(f"{written.ident}: it was to have {expected} rows more, and would have {grown}; nothing was taken")

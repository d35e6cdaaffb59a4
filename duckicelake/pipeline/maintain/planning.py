"""The steps of `maintain`: what there is to do by DuckLake's catalog and the policy, whether it is possible, and its result; pure.

`maintain.job` and `compaction` call it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.schema import Schema, parse_schema
from duckicelake.iceberg.types import NestedField, PrimitiveType, walk_fields
from duckicelake.pipeline.common.reports import Report, Verdict
from duckicelake.pipeline.common.rest import TableIdent, fold
from duckicelake.pipeline.common.staging import format_identifier, list_named
from duckicelake.pipeline.maintain.policy import Policy, Strategy
from duckicelake.pipeline.verify.checksums import VARIANT, check_readable


class StepKind(StrEnum):
    """The steps there are, in the order in which they are taken."""

    branches = "branches"
    flush = "flush"
    compact = "compact"
    expire = "expire"
    forget = "forget"
    clean_up = "clean-up"
    orphans = "orphans"


@dataclass(frozen=True, slots=True)
class FileGroup:
    """The live data files of one partition. `worn`: at or above the delete ratio."""

    partition: str
    files: int
    bytes: int
    small_files: int
    small_bytes: int
    worn_files: int
    worn_bytes: int


@dataclass(frozen=True, slots=True)
class TableFacts:
    """Facts of DuckLake's catalog about a table.

    Inlined rows count dead ones too, which a flush removes as well; `inlined_batches`: as many files Iceberg clients see in their place.
    `withheld`: why DuckDB must not flush it. `small_bytes`: below which size files counted as small, less than the policy says where
    sorted files stay; 0: nothing did.
    """

    groups: tuple[FileGroup, ...] = ()
    largest_bytes: int = 0
    inlined_rows: int = 0
    inlined_batches: int = 0
    inlined_deletes: int = 0
    withheld: str = ""
    small_bytes: int = 0

    @property
    def files(self) -> int:
        return sum(group.files for group in self.groups)

    @property
    def bytes(self) -> int:
        return sum(group.bytes for group in self.groups)


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do, and how much of what it is about."""

    kind: StepKind
    reason: str
    files: int = 0
    bytes: int = 0
    rows: int = 0
    versions: tuple[int, ...] = ()
    before: datetime | None = None


@dataclass(frozen=True, slots=True)
class LakeSnapshot:
    """A lake snapshot, and the tables whose rows or columns it changed."""

    snapshot_id: int
    at: datetime
    table_ids: frozenset[int]


def plan_flush(facts: TableFacts, policy: Policy) -> Step | None:
    """Inlined rows and deletes become files, when there are enough of them and DuckDB does it right."""
    rows = facts.inlined_rows + facts.inlined_deletes
    if rows < policy.flush_rows or facts.withheld:
        return None
    return Step(StepKind.flush, f"{facts.inlined_rows} inlined rows, {facts.inlined_deletes} inlined deletes", rows=rows)


def plan_compaction(facts: TableFacts, policy: Policy) -> Step | None:
    """Small files of a partition become fewer, and files with many deleted rows are rewritten, if any partition needs it."""
    groups = [group for group in map(lambda one: _add_inlined(one, facts), facts.groups or (_EMPTY,)) if _needs_rewriting(group, policy)]
    if not groups:
        return None
    small, worn = (sum(count) for count in zip(*((group.small_files, group.worn_files) for group in groups), strict=True))
    size = sum(max(group.small_bytes, group.worn_bytes) for group in groups)
    places = f" of {len(groups)} partitions" if len(groups) > 1 else ""
    return Step(StepKind.compact, f"{small} small files, {worn} with many deletes{places}", files=max(small, worn), bytes=size)


_EMPTY = FileGroup("", 0, 0, 0, 0, 0, 0)


def _add_inlined(group: FileGroup, facts: TableFacts) -> FileGroup:
    """Return a group with inlined rows that DuckDB must not flush: small files to Iceberg clients; they count for the first group."""
    if not facts.withheld or (facts.groups and group is not facts.groups[0]):
        return group
    return FileGroup(
        group.partition,
        group.files + facts.inlined_batches,
        group.bytes,
        group.small_files + facts.inlined_batches,
        group.small_bytes,
        group.worn_files,
        group.worn_bytes,
    )


def _needs_rewriting(group: FileGroup, policy: Policy) -> bool:
    # As many files of the same size would come out: nothing is won, and the next run would find them again.
    fewer = max(1, -(-group.small_bytes // policy.target_size)) < group.small_files
    return group.worn_files > 0 or (group.small_files >= policy.min_files and fewer)


def plan_expiry(
    snapshots: Sequence[LakeSnapshot], kept: frozenset[int], policies: Mapping[int, Policy], lake: Policy, now: datetime
) -> Step | None:
    """Return the lake snapshots that may go: every table that one changed lets it go, it is not kept, and not the newest.

    `policies` are those of live tables by id; what changed none of them goes by the lake's. A table's newest state is there
    at the lake's newest snapshot, so it holds none of its own: that would hold the files of all tables of that time.
    """
    in_order = sorted(snapshots, key=lambda one: one.snapshot_id, reverse=True)
    states = Counter[int]()
    gone: list[int] = []
    for place, one in enumerate(in_order):
        live = [table_id for table_id in one.table_ids if table_id in policies]
        states.update(live)
        held = any(1 < states[table_id] <= policies[table_id].snapshot_count for table_id in live) if live else place < lake.snapshot_count
        ages = [policies[table_id].snapshot_age for table_id in live] or [lake.snapshot_age]
        if place and one.snapshot_id not in kept and not held and all(_is_older(one.at, age, now) for age in ages):
            gone.append(one.snapshot_id)
    if not gone:
        return None
    return Step(StepKind.expire, f"{len(gone)} of {len(snapshots)} lake snapshots", versions=tuple(sorted(gone)))


def plan_forgetting(metadata: Mapping[str, Any], branch_snapshots: frozenset[int], policy: Policy, now: datetime) -> Step | None:
    """Return the snapshots of a table that no expiry of DuckLake's reaches, and that may go: no ref leads to them, and they are old enough.

    `branch_snapshots` are those that clients made on branches or staged, also if main went there, but those of live lake snapshots.
    """
    snapshots = metadata.get("snapshots", ())
    # What main was at, newest first, each once.
    states = list(dict.fromkeys(entry["snapshot-id"] for entry in reversed(metadata.get("snapshot-log", ()))))
    held = list_named(metadata, {}) | set(states[: policy.snapshot_count])
    ages = ((one["snapshot-id"], datetime.fromtimestamp(one["timestamp-ms"] / 1000, UTC)) for one in snapshots)
    old = {snapshot_id for snapshot_id, at in ages if _is_older(at, policy.snapshot_age, now)}
    gone = (old & branch_snapshots) - held
    if not gone:
        return None
    return Step(StepKind.forget, f"{len(gone)} of {len(snapshots)} snapshots", versions=tuple(sorted(gone)))


def format_forgetting(ident: TableIdent, metadata: Mapping[str, Any], snapshot_ids: Sequence[int]) -> dict[str, Any]:
    """Snapshots go, if every ref is where it was."""
    refs = {name: ref["snapshot-id"] for name, ref in metadata.get("refs", {}).items()}
    at = [{"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": head} for name, head in refs.items()]
    return {
        "identifier": format_identifier(ident),
        "requirements": [{"type": "assert-table-uuid", "uuid": metadata["table-uuid"]}, *at],
        "updates": [{"action": "remove-snapshots", "snapshot-ids": list(snapshot_ids)}],
    }


def _is_older(at: datetime, age: timedelta | None, now: datetime) -> bool:
    return age is not None and at <= now - age


def plan_removal(scheduled: int, lake: Policy, now: datetime) -> list[Step]:
    """Return the steps that remove files which no snapshot references, once they are old enough."""
    steps: list[Step] = []
    if scheduled:
        steps.append(Step(StepKind.clean_up, f"{scheduled} files that no snapshot needs", files=scheduled, before=now - lake.file_age))
    if lake.orphan_age is not None:
        steps.append(Step(StepKind.orphans, "what nothing names", before=now - lake.orphan_age))
    return steps


_ZORDERED = ("boolean", "int", "long", "float", "double", "string", "uuid", "binary", "fixed", "date", "timestamp")
"""How the types begin that Iceberg puts in z-order; of times with a date, Spark reads those in microseconds alone."""


def check_possible(policy: Policy, metadata: Mapping[str, Any]) -> None:
    """Raises: Unsupported: Spark cannot read the table, or it has no order to sort by; BadRequest: it cannot have the policy's."""
    schema = _read_schema(metadata)
    check_readable(schema)
    if policy.strategy is Strategy.sort and not policy.order and not metadata["default-sort-order-id"]:
        raise Unsupported("strategy sort needs an order, of the policy or of the table itself")
    if policy.strategy is not Strategy.binpack:
        found = [_get_column(schema, field.column) for field in policy.order]
        unordered = next((path for path, item in found if item.type == VARIANT), None)
        if unordered is not None:
            raise BadRequest(f"column {unordered} is variant, whose values have no order")
        if policy.strategy is Strategy.zorder:
            _check_zorder(found, metadata)


def spell_order(policy: Policy, metadata: Mapping[str, Any]) -> Policy:
    """Return the policy with the columns of its order in the table's spelling. Raises: BadRequest: the table lacks one"""
    if policy.strategy is Strategy.binpack:
        return policy
    schema = _read_schema(metadata)
    return replace(policy, order=tuple(replace(field, column=_get_column(schema, field.column)[0]) for field in policy.order))


def _read_schema(metadata: Mapping[str, Any]) -> Schema:
    return parse_schema(next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"]))


def _get_column(schema: Schema, name: str) -> tuple[str, NestedField]:
    """Return a column, or a field of one, with its dotted path; as it is spelled, else in any case."""
    columns = list(walk_fields(schema.fields))
    same = [one for one in columns if one[0] == name] or [one for one in columns if fold(one[0]) == fold(name)]
    if not same:
        raise BadRequest(f"there is no column {name} to order by")
    return same[0]


def _check_zorder(columns: Sequence[tuple[str, NestedField]], metadata: Mapping[str, Any]) -> None:
    """Source: SparkZOrderUDF and SparkZOrderFileRewriteRunner of Iceberg 1.11"""
    for path, item in columns:
        why = _explain_obstacle(path, item)
        if why:
            raise BadRequest(f"strategy zorder cannot take column {path}, which {why}")
    spec = next(one for one in metadata["partition-specs"] if one["spec-id"] == metadata["default-spec-id"])
    constant = {part["source-id"] for part in spec["fields"] if part["transform"] == "identity"}
    if all(item.field_id in constant for _, item in columns):
        raise BadRequest("strategy zorder needs a column that is not the same in all of a partition")


def _explain_obstacle(path: str, item: NestedField) -> str:
    if path != item.name:
        return "is inside another one"
    if "." in path or "`" in path:
        return "has a dot or a backtick in its name"
    if not isinstance(item.type, PrimitiveType):
        return "has others inside it"
    return "" if item.type.name.startswith(_ZORDERED) else f"is {item.type}"


LAKE = "(the lake)"
"""What steps are about that concern no single table."""
_REMOVED = {StepKind.expire: "lake snapshots", StepKind.branches: "branches of dead runs", StepKind.forget: "snapshots"}


@dataclass(frozen=True, slots=True)
class StepResult:
    """A step of one table or of the lake, and what became of it.

    `removed` and `added` count files, branches or snapshots of the table, lake snapshots, or objects of the store; `message` says why not,
    or not all. `snapshot_id`: the newest that a compaction made. `reason`: what there was to do, where that is known.
    """

    subject: str
    kind: StepKind | None
    verdict: Verdict
    reason: str = ""
    rows: int = 0
    bytes: int = 0
    removed: int = 0
    added: int = 0
    attempts: int = 0
    snapshot_id: int | None = None
    message: str = ""

    def describe(self) -> str:
        """Return the step in a line."""
        what = f"{self.subject}: {self.kind}" if self.kind else self.subject
        if self.verdict in (Verdict.failed, Verdict.skipped):
            there = f" ({self._describe_files()} at snapshot {self.snapshot_id})" if self.snapshot_id is not None else ""
            return f"{what}: {self.verdict}: {self.message}{there}"
        if self.verdict is Verdict.planned:
            return f"{what}: {self.reason}"
        if self.kind is StepKind.compact:
            return f"{what}: {self._describe_files()}{f': {self.message}' if self.message else ''}"
        if self.kind is StepKind.flush:
            return f"{what}: {self.rows} inlined rows and deletes became files"
        return f"{what}: {self.removed} {_REMOVED.get(self.kind, 'objects') if self.kind else 'objects'} removed"

    def _describe_files(self) -> str:
        return f"{self.removed} files with {self.bytes} bytes became {self.added}"


def report_found(subject: str, kind: StepKind, attempt: int) -> StepResult:
    """Return a step of which the answer was lost."""
    return StepResult(subject, kind, Verdict.done, "it was done after all", attempts=attempt)


def plan_of(subject: str, step: Step) -> StepResult:
    """Return a step that is not taken yet."""
    return StepResult(subject, step.kind, Verdict.planned, step.reason, step.rows, step.bytes, removed=step.files or len(step.versions))


@dataclass(frozen=True, slots=True)
class MaintainReport(Report):
    """One run, or one round of a service. `message` is set when it could not even be planned."""

    job = "maintain"
    run_id: str = ""
    steps: tuple[StepResult, ...] = ()
    tables: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict[str, float])
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    message: str = ""

    @property
    def parts(self) -> Sequence[StepResult]:
        """The steps."""
        return self.steps

    def describe(self) -> list[str]:
        """Return the report for people."""
        return [*(step.describe() for step in self.steps), f"{self.tables} tables: {self.verdict} (run {self.run_id})"]

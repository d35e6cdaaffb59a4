"""The requests that one transaction commits: one for one table or several, or a group that changes properties of one table.

Also what a request requires of its table, and if the table shows that it has landed. Pure: `rest` makes these values of bodies, and
the steps of a commit use them, before the lake's lock and under it.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256

from duckicelake.catalog.tables import Ident
from duckicelake.errors import BadRequest
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.bodies import CommitTable
from duckicelake.iceberg.requests.requirements import Requirement, check_removed_refs, check_requirements, is_create
from duckicelake.iceberg.requests.updates import AssignUuid, RemoveProperties, RemoveSnapshots, SetProperties, TableUpdate
from duckicelake.iceberg.snapshots import Snapshot, select_known_ids
from duckicelake.lake.audit_log import AuditContext
from duckicelake.lake.rows import TableRow
from duckicelake.translate.namespaces import fold_name
from duckicelake.translate.to_ducklake.commits import is_replay, list_added, list_client_ids, map_requirements, map_updates

CommittedIds = Mapping[int, int]
"""The lake snapshots of those of a client's snapshot ids that have been committed."""
NONE_COMMITTED: CommittedIds = {}


@dataclass(frozen=True, slots=True)
class TableCommit:
    """A client's commit request for one table.

    `checks_types`: the client may store columns in other types than the table's, so its data files are looked into.
    """

    ident: Ident
    requirements: tuple[Requirement, ...]
    updates: tuple[TableUpdate, ...]
    checks_types: bool = False

    @property
    def creates(self) -> bool:
        """True if the request creates its table. Raises: BadRequest: it also requires something of the table."""
        return is_create(self.requirements)

    @property
    def only_sets_properties(self) -> bool:
        """True if the request changes only properties of an existing table; no requirement depends on a property."""
        are_properties = [isinstance(update, SetProperties | RemoveProperties) for update in self.updates]
        return bool(self.updates) and not self.creates and all(are_properties)

    def list_added(self) -> list[Snapshot]:
        """Return the snapshots that the request adds, in order."""
        return list_added(self.updates)


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A request that changes only properties, and who sends it."""

    request: TableCommit
    audit_context: AuditContext


@dataclass(frozen=True, slots=True)
class CommitBatch:
    """The requests that one transaction commits.

    `digest` identifies a request for several tables. `members` are the requests of a group, whose updates are one request here;
    the requirements of each are checked under the lock.
    """

    requests: Sequence[TableCommit]
    digest: str = ""
    members: Sequence[GroupMember] = ()

    @property
    def watched(self) -> Sequence[TableCommit]:
        """The requests with the requirements of all members, whose snapshot ids are looked up under the lock."""
        return [join_members(self.requests[0].ident, self.members)] if self.members else self.requests


def to_request(ident: Ident, body: CommitTable, *, checks_types: bool = False) -> TableCommit:
    """Return what a body asks of a table."""
    return TableCommit(ident, body.requirements, body.updates, checks_types)


def join_members(ident: Ident, members: Sequence[GroupMember]) -> TableCommit:
    """Return the requirements and updates of all members, in order, as one request."""
    requirements = tuple(requirement for member in members for requirement in member.request.requirements)
    return replace(join_updates(ident, members), requirements=requirements)


def join_updates(ident: Ident, members: Sequence[GroupMember]) -> TableCommit:
    """Return the updates of all members, in order, as one request without requirements."""
    return TableCommit(ident, (), tuple(update for member in members for update in member.request.updates))


def build_group(ident: Ident, members: Sequence[GroupMember]) -> CommitBatch:
    """Return requests that change only properties of one table as one batch."""
    return CommitBatch([join_updates(ident, members)], members=members)


def build_transaction(requests: Sequence[TableCommit]) -> CommitBatch:
    """Return a request for several tables as one batch. Raises: BadRequest: it names one table twice."""
    check_named_once(requests)
    return CommitBatch(requests, compute_batch_digest(requests))


def check_named_once(requests: Sequence[TableCommit]) -> None:
    """Raise BadRequest when a request names one table twice: DuckDB folds case."""
    seen: dict[tuple[str, str], TableCommit] = {}
    for request in requests:
        schema_name, table_name = request.ident.stored
        other = seen.setdefault((fold_name(schema_name), fold_name(table_name)), request)
        if other is not request:
            raise BadRequest(
                f"Cannot commit: {other.ident} and {request.ident} are one table, as DuckDB folds case; "
                "put all its updates into one change."
            )


def compute_batch_digest(requests: Sequence[TableCommit]) -> str:
    """Return the digest of the updates of a request over several tables, without its requirements; empty for one table."""
    if len(requests) < 2:
        return ""
    whole = sha256()
    for request in sorted(requests, key=lambda request: (request.ident.namespace, request.ident.name)):
        whole.update(repr((request.ident, request.updates)).encode("utf-8", "surrogatepass"))
    return whole.hexdigest()


def check_uuids(requests: Sequence[TableCommit]) -> None:
    """Raise BadRequest when two tables are to have one uuid."""
    wanted = Counter(uuid for request in requests for uuid in {each.uuid for each in request.updates if isinstance(each, AssignUuid)})
    twice = [uuid for uuid, count in wanted.items() if count > 1]
    if twice:
        raise BadRequest(f"Cannot commit: two tables are to have the uuid {twice[0]}; give each its own.")


def list_unknown_ids(request: TableCommit, metadata: TableMetadata | None) -> list[int]:
    """Return the ids of a request that are not the table's own, or should not be."""
    added = {snapshot.snapshot_id for snapshot in request.list_added()}
    others = set(list_client_ids(request.requirements, request.updates)) - added
    return [*(others - list_own_ids(metadata, others)), *added]


def list_own_ids(metadata: TableMetadata | None, ids: Collection[int]) -> set[int]:
    """Return those of the ids that snapshots of the table have."""
    return set() if metadata is None else select_known_ids(metadata.snapshots, ids)


def build_id_translator(metadata: TableMetadata | None, committed_ids: CommittedIds) -> Callable[[int], int]:
    """Return what gives the id that the lake has for a snapshot which a client may know by its own."""
    ours = list_own_ids(metadata, committed_ids.keys())
    return lambda snapshot_id: snapshot_id if snapshot_id in ours else committed_ids.get(snapshot_id, snapshot_id)


def check_still_required(request: TableCommit, metadata: TableMetadata | None, committed_ids: CommittedIds) -> None:
    """Raise CommitFailed when a requirement does not hold."""
    to_lake_id = build_id_translator(metadata, committed_ids)
    requirements = map_requirements(request.requirements, to_lake_id)
    check_requirements(metadata, requirements)
    if any([isinstance(update, RemoveSnapshots) for update in request.updates]):
        check_removed_refs(metadata, requirements, map_updates(request.updates, to_lake_id))


def is_committed(request: TableCommit, table: TableRow, committed_ids: CommittedIds) -> bool:
    """Return True if a request has landed: all snapshots that it adds are known, or the table that it makes is there under its uuid."""
    if request.list_added():
        return is_replay(request.updates, committed_ids)
    uuids = [update.uuid.lower() for update in request.updates if isinstance(update, AssignUuid)]
    return request.creates and str(table.table_uuid) in uuids

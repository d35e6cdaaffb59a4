"""Groups of requests that change only properties of one table: one transaction commits them all, with one lake snapshot.

Law: no requirement depends on a property, so the requirements of a member hold for the table as it is under the lock, also after the
changes of the members before it. `commits.commit` calls this under the lake's lock.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from duckicelake.catalog.commits.prepare import CommitBase, TableCommit, check_still_required
from duckicelake.catalog.tables import Ident
from duckicelake.errors import CommitFailed
from duckicelake.iceberg.requests.bodies import CommitTable
from duckicelake.iceberg.requests.requirements import is_create
from duckicelake.iceberg.requests.updates import RemoveProperties, SetProperties
from duckicelake.lake.audit_log import AuditContext


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A request that changes only properties, and who sends it."""

    body: CommitTable
    audit_context: AuditContext


@dataclass(frozen=True, slots=True)
class ChosenMembers:
    """The members of a group whose requirements hold, as one request, and the others' errors by their place in the group."""

    request: TableCommit
    audit_contexts: Sequence[AuditContext]
    refusals: Mapping[int, CommitFailed]


def may_be_grouped(body: CommitTable) -> bool:
    """Return True if a request changes only properties of an existing table."""
    return bool(body.updates) and not is_create(body.requirements) and all(map(_changes_properties, body.updates))


def _changes_properties(update: object) -> bool:
    return isinstance(update, SetProperties | RemoveProperties)


def join_members(ident: Ident, members: Sequence[GroupMember]) -> TableCommit:
    """Return the requirements and updates of all members, in order, as one request."""
    requirements = tuple(requirement for member in members for requirement in member.body.requirements)
    return TableCommit(ident, CommitTable(None, requirements, tuple(update for member in members for update in member.body.updates)))


def choose_members(ident: Ident, members: Sequence[GroupMember], base: CommitBase) -> ChosenMembers:
    """Return the members whose requirements hold for the table under the lock; `base` has the client's ids that are known."""
    refusals: dict[int, CommitFailed] = {}
    for number, member in enumerate(members):
        try:
            check_still_required(TableCommit(ident, member.body), base)
        except CommitFailed as error:
            refusals[number] = error
    chosen = [member for number, member in enumerate(members) if number not in refusals]
    joined = join_members(ident, chosen)
    return ChosenMembers(without_requirements(joined), [member.audit_context for member in chosen], refusals)


def without_requirements(request: TableCommit) -> TableCommit:
    """Return the updates of a request alone."""
    return TableCommit(request.ident, CommitTable(None, (), request.body.updates))

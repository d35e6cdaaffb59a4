"""What a line of the record says. Nothing that a client sent as a secret or a token ever comes into one."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class AuditContext:
    """Who asks for what, of which objects: `sales.orders`, levels and name escaped as rights write them.

    `principal` None: nobody has to say who they are.
    """

    request_id: str
    principal: str | None
    operation: str
    objects: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AuditLine:
    """One line: what became of it. `done`: its change is in the lake; else it is why nothing was done, by its `reason`.

    `lake_snapshot_id`: the last one that the change made; None: it made none.
    """

    audit_context: AuditContext
    outcome: str
    lake_snapshot_id: int | None = None
    reason: str | None = None


DONE, UNKNOWN, DENIED, HIDDEN, UNPROVEN = "done", "unknown", "denied", "hidden", "unproven"
"""Outcomes. `unknown` is told in the log alone: Postgres has the line if the change is in the lake. `hidden`: denied, as if the
object were not there. `unproven`: nobody knows who asked."""

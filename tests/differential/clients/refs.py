"""Tags and branches by PyIceberg."""

from typing import assert_never

from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import ancestors_of, latest_ancestor_before_timestamp

from tests.differential.clients.ref_operations import DropRef, MakeRef, MoveMain

OfRefs = MakeRef | DropRef | MoveMain
BY_TIME = ("r1", "v1")
"""Main goes back to these by their time, where no other snapshot has the same; to others by their id."""


def change_refs(catalog: Catalog, operation: OfRefs, ident: tuple[str, str]) -> None:
    """Commit what is done to a ref, or to main by one."""
    table = catalog.load_table(ident)
    manage = table.manage_snapshots()
    current = table.metadata.current_snapshot_id
    match operation:
        case MakeRef(_, name, is_branch, retention):
            assert current is not None
            (manage.create_branch(current, name, *retention) if is_branch else manage.create_tag(current, name, retention[0])).commit()
        case DropRef(_, name):
            is_branch = table.refs()[name].snapshot_ref_type.value == "branch"
            (manage.remove_branch if is_branch else manage.remove_tag)(name).commit()
        case MoveMain(_, name):
            target = table.refs()[name].snapshot_id
            ancestors = {found.snapshot_id: found.timestamp_ms for found in ancestors_of(table.current_snapshot(), table.metadata)}
            after = ancestors.get(target, 0) + 1
            newest = latest_ancestor_before_timestamp(table.metadata, after)
            if newest is not None and newest.snapshot_id == target and name in BY_TIME:
                manage.rollback_to_timestamp(after).commit()
            elif target in ancestors:
                manage.rollback_to_snapshot(target).commit()
            else:
                manage.set_current_snapshot(ref_name=name).commit()
        case _:
            assert_never(operation)

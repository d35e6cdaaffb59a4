"""Tags and branches by PyIceberg."""

from typing import assert_never

from pyiceberg.catalog import Catalog

from tests.differential.clients.ref_operations import DropRef, MakeRef, MoveMain

OfRefs = MakeRef | DropRef | MoveMain


def change_refs(catalog: Catalog, operation: OfRefs, ident: tuple[str, str]) -> None:
    """Commit what is done to a ref, or to main by one."""
    table = catalog.load_table(ident)
    manage = table.manage_snapshots()
    current = table.metadata.current_snapshot_id
    match operation:
        case MakeRef(_, name, is_branch):
            assert current is not None
            make = manage.create_branch if is_branch else manage.create_tag
            make(current, name).commit()
        case DropRef(_, name):
            is_branch = table.refs()[name].snapshot_ref_type.value == "branch"
            (manage.remove_branch if is_branch else manage.remove_tag)(name).commit()
        case MoveMain(_, name):
            target, ancestors = table.refs()[name].snapshot_id, set[int]()
            snapshot = table.current_snapshot()
            while snapshot is not None:
                ancestors.add(snapshot.snapshot_id)
                parent = snapshot.parent_snapshot_id
                snapshot = None if parent is None else table.snapshot_by_id(parent)
            if target in ancestors:
                manage.rollback_to_snapshot(target).commit()
            else:
                manage.set_current_snapshot(ref_name=name).commit()
        case _:
            assert_never(operation)

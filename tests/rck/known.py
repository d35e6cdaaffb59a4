"""The tests of the kit that are not passed, each with its reason; when one of them passes, its line goes."""

from collections.abc import Mapping

from tests.rck.running import Kind

REFS = "branches, and snapshots that a client removes, are not taken yet"
VIEWS = "views are not served yet"
EMPTY_NAMESPACE = "REST has no way to name the empty namespace"

FAILED: Mapping[Kind, Mapping[str, str]] = {
    "table": {
        "testRemoveUnusedSchemas([1] true)": REFS,
        "testRemoveUnusedSchemas([2] false)": REFS,
        "testRemoveUnusedSpec([1] true)": REFS,
        "testRemoveUnusedSpec([2] false)": REFS,
    },
    "view": {},
}

SKIPPED: Mapping[Kind, Mapping[str, str]] = {
    "table": {
        "createAndDropEmptyNamespace": EMPTY_NAMESPACE,
        "listTablesInEmptyNamespace": EMPTY_NAMESPACE,
        "namespacePropertiesOnEmptyNamespace": EMPTY_NAMESPACE,
    },
    "view": {},
}

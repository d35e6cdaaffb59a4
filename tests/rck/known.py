"""The tests of the kit that are passed over, each with its reason; when one of them runs, its name goes."""

from collections.abc import Mapping

from tests.rck.running import Kind

EMPTY_NAMESPACE = "REST has no way to name the empty namespace"
LOCAL = "moves a file of the warehouse with java.nio"

SKIPPED: Mapping[Kind, Mapping[str, str]] = {
    "table": {
        "createAndDropEmptyNamespace": EMPTY_NAMESPACE,
        "listNamespacesWithEmptyNamespace": EMPTY_NAMESPACE,
        "listTablesInEmptyNamespace": EMPTY_NAMESPACE,
        "namespacePropertiesOnEmptyNamespace": EMPTY_NAMESPACE,
    },
    "view": {"listViewsInEmptyNamespace": EMPTY_NAMESPACE},
}

SKIPPED_ON_S3: Mapping[tuple[str, Kind], Mapping[str, str]] = {
    ("1.11.0", "table"): {"testLoadTableWithMissingMetadataFile": LOCAL},
    ("1.11.0", "view"): {},
    ("1.10.1", "table"): {},
    ("1.10.1", "view"): {},
}

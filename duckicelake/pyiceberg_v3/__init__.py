"""A patch that lets PyIceberg 0.12 write format version 3, which it can only read. `install()` applies it to the current process.

It runs in the client's process, never in the server's. Appended rows get row ids, and deleted rows become deletion vectors: `delete`,
`overwrite`, `upsert` and `dynamic_partition_overwrite` never copy the remaining rows, so these keep their ids. Files that hold variants
can be read without them.
"""

from collections.abc import Callable
from typing import Any

import pyiceberg
from pyiceberg import manifest
from pyiceberg.io import pyarrow as pyiceberg_arrow
from pyiceberg.table import Transaction
from pyiceberg.table import update as table_update
from pyiceberg.table.update import snapshot as snapshot_update

from duckicelake.errors import Unsupported
from duckicelake.pyiceberg_v3 import commits, deletes, manifests, variants

KNOWN_VERSIONS = frozenset({"0.12.0"})

PATCHES: tuple[tuple[Any, str, Any, Any], ...] = (
    (manifest, "DEFAULT_READ_VERSION", manifest.DEFAULT_READ_VERSION, manifests.VERSION),
    (manifest, "write_manifest", manifests.WRITE_MANIFEST, manifests.write_manifest),
    (snapshot_update, "write_manifest", manifests.WRITE_MANIFEST, manifests.write_manifest),
    (manifest.ManifestFile, "fetch_manifest_entry", manifests.FETCH, manifests.fetch_manifest_entry),
    (getattr(snapshot_update, "_SnapshotProducer"), "_commit", commits.COMMIT, commits.commit),  # noqa: B009 - a private name
    (table_update, "SUPPORTED_TABLE_FORMAT_VERSION", commits.SUPPORTED, manifests.VERSION),
    (Transaction, "upgrade_table_version", commits.UPGRADE, commits.upgrade_table_version),
    (Transaction, "delete", deletes.DELETE, deletes.delete),
    (pyiceberg_arrow, "pyarrow_to_schema", variants.PYARROW_TO_SCHEMA, variants.pyarrow_to_schema),
)
"""For each patch: the owner, the name, PyIceberg's original and the replacement."""


def install() -> Callable[[], None]:
    """Let PyIceberg write version 3 from now on, and return a function that undoes it. A second call has no further effect.

    Raises: Unsupported: this PyIceberg is not one that the shim was written for
    """
    if pyiceberg.__version__ not in KNOWN_VERSIONS:
        known = ", ".join(sorted(KNOWN_VERSIONS))
        raise Unsupported(
            f"PyIceberg {pyiceberg.__version__} is not known to this shim, which was written for {known}: "
            "install that one, or see whether yours writes format version 3 by itself."
        )
    for owner, name, _, ours in PATCHES:
        setattr(owner, name, ours)
    return uninstall


def uninstall() -> None:
    """Restore PyIceberg's own functions."""
    for owner, name, theirs, _ in PATCHES:
        setattr(owner, name, theirs)

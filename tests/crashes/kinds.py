"""The kinds of requests that are broken off: what each needs, what is asked, and what everybody sees before and after."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import pyarrow as pa

from duckicelake.iceberg.manifest import EQUALITY_DELETES, DataFile
from duckicelake.iceberg.puffin import encode_deletion_vectors
from tests.crashes.asked import BASE_ROWS, FRESH_ROWS, Asked, Rows, Stand, new_id, require_main, table_path, to_body
from tests.crashes.beside import NOTE_KINDS
from tests.crashes.names import NAME_KINDS
from tests.rest.writing.client import COLUMNS, Client, write_file

MORE = {"id": 3, "name": "more", "required": False, "type": "double"}


def append(stand: Stand, name: str) -> Asked:
    base = stand.make(name)
    updates = stand.client.append(base, new_id(), [stand.write(base)])
    after = {name: [*BASE_ROWS, *FRESH_ROWS]}
    return Asked("POST", table_path(name), to_body(updates, [require_main(base)]), {name: BASE_ROWS}, after)


def delete_positions(stand: Stand, name: str) -> Asked:
    """Of a data file, by a position delete file."""
    base = stand.make(name)
    path = stand.find_file(name)
    deletes = stand.write_deletes(base, path, [0, 5, 19])
    updates = stand.client.append(base, new_id(), [], [deletes])
    after = [row for row in BASE_ROWS if row[0] not in (0, 5, 19)]
    return Asked("POST", table_path(name), to_body(updates, [require_main(base)]), {name: BASE_ROWS}, {name: after})


def delete_inlined(stand: Stand, name: str) -> Asked:
    """Of an inlined row, by the file that stands for it."""
    base = stand.make(name)
    file = stand.write_deletes(base, stand.find_derived_file(base), [0])
    updates = stand.client.append(base, new_id(), [], [file])
    return Asked("POST", table_path(name), to_body(updates, [require_main(base)]), {name: BASE_ROWS}, {name: BASE_ROWS[:-1]})


def delete_equal(stand: Stand, name: str) -> Asked:
    """Of rows of a data file and an inlined one, by an equality delete file: the server finds them before it commits."""
    base = stand.make(name)
    equal = {"content": EQUALITY_DELETES, "equality_ids": (1,)}
    deletes = write_file(stand.client, base, f"equal-{uuid4()}", {1: pa.array([0, 5, 100])}, **equal)
    updates = stand.client.append(base, new_id(), [], [deletes])
    after = [row for row in BASE_ROWS if row[0] not in (0, 5, 100)]
    return Asked("POST", table_path(name), to_body(updates, [require_main(base)]), {name: BASE_ROWS}, {name: after})


def delete_vector(stand: Stand, name: str) -> Asked:
    """Of a data file, by a deletion vector."""
    base = stand.make(name, 3)
    path = stand.find_file(name)
    file = put_vector(stand.client, base, path, [1, 2])
    updates = stand.client.append(base, new_id(), [], [file])
    after = [row for row in BASE_ROWS if row[0] not in (1, 2)]
    return Asked("POST", table_path(name), to_body(updates, [require_main(base)]), {name: BASE_ROWS}, {name: after})


def put_vector(client: Client, metadata: Any, path: str, positions: Sequence[int]) -> DataFile:
    """Write a deletion vector for a data file."""
    puffin = encode_deletion_vectors([(path, positions)])
    uri = f"{metadata['location']}/data/{uuid4()}.puffin"
    client.objects.put_new(uri, puffin.content)
    [blob] = puffin.blobs
    return DataFile(
        content=1,
        file_path=uri,
        file_format="PUFFIN",
        partition=(),
        record_count=len(positions),
        file_size_in_bytes=len(puffin.content),
        referenced_data_file=path,
        content_offset=blob.offset,
        content_size_in_bytes=blob.length,
    )


def create(stand: Stand, name: str) -> Asked:
    return Asked("POST", "namespaces/main/tables", {"name": name, "schema": COLUMNS}, {name: None}, {name: []}, is_known=False)


def create_staged(stand: Stand, name: str) -> Asked:
    """A table with its first rows, as engines make one from a query."""
    staged = stand.client.create(name, **{"stage-create": True}).json["metadata"]
    updates = [
        {"action": "assign-uuid", "uuid": staged["table-uuid"]},
        {"action": "upgrade-format-version", "format-version": 2},
        {"action": "add-schema", "schema": staged["schemas"][0], "last-column-id": 2},
        {"action": "set-current-schema", "schema-id": -1},
        {"action": "add-spec", "spec": {"spec-id": 0, "fields": []}},
        {"action": "set-default-spec", "spec-id": -1},
        {"action": "add-sort-order", "sort-order": {"order-id": 0, "fields": []}},
        {"action": "set-default-sort-order", "sort-order-id": -1},
        {"action": "set-location", "location": staged["location"]},
        *stand.client.append(staged, new_id(), [stand.write(staged)]),
    ]
    body = to_body(updates, [{"type": "assert-create"}])
    return Asked("POST", table_path(name), body, {name: None}, {name: FRESH_ROWS})


def replace_table(stand: Stand, name: str) -> Asked:
    """Other columns and other rows under the same name, as `CREATE OR REPLACE TABLE … AS` does."""
    base = stand.make(name)
    fields = [{"id": 3, "name": "id", "required": False, "type": "long"}, {"id": 4, "name": "word", "required": False, "type": "string"}]
    columns = {3: pa.array([row[0] for row in FRESH_ROWS]), 4: pa.array([row[1] for row in FRESH_ROWS])}
    schema = {"type": "struct", "schema-id": 1, "fields": fields}
    file = write_file(stand.client, base, f"fresh-{uuid4()}", columns)
    bare = base | {"current-snapshot-id": None, "schemas": [schema], "current-schema-id": 1}
    updates = [
        {"action": "remove-snapshot-ref", "ref-name": "main"},
        {"action": "add-schema", "schema": schema, "last-column-id": 4},
        {"action": "set-current-schema", "schema-id": -1},
        *stand.client.append(bare, new_id(), [file]),
    ]
    requirements = [{"type": "assert-table-uuid", "uuid": base["table-uuid"]}]
    return Asked("POST", table_path(name), to_body(updates, requirements), {name: BASE_ROWS}, {name: FRESH_ROWS})


def drop_purged(stand: Stand, name: str) -> Asked:
    stand.make(name)
    return Asked("DELETE", table_path(name) + "?purgeRequested=true", None, {name: BASE_ROWS}, {name: None}, is_known=False)


def change_two_tables(stand: Stand, name: str) -> Asked:
    changes: list[Any] = []
    names = (name, f"{name}_b")
    for table in names:
        base = stand.make(table)
        body = to_body(stand.client.append(base, new_id(), [stand.write(base)]), [require_main(base)])
        changes.append({"identifier": {"namespace": ["main"], "name": table}, **body})
    before, after = dict.fromkeys(names, BASE_ROWS), dict.fromkeys(names, [*BASE_ROWS, *FRESH_ROWS])
    return Asked("POST", "transactions/commit", {"table-changes": changes}, before, after)


def change_schema(stand: Stand, name: str) -> Asked:
    base = stand.make(name)
    schema = {"type": "struct", "schema-id": 1, "fields": [*base["schemas"][-1]["fields"], MORE]}
    updates = [
        {"action": "add-schema", "schema": schema, "last-column-id": 3},
        {"action": "set-current-schema", "schema-id": -1},
    ]
    requirement = {"type": "assert-current-schema-id", "current-schema-id": base["current-schema-id"]}
    after = {name: [(*row, None) for row in BASE_ROWS]}
    return Asked("POST", table_path(name), to_body(updates, [requirement]), {name: BASE_ROWS}, after, is_known=False)


def rename(stand: Stand, name: str) -> Asked:
    stand.make(name)
    target = f"{name}_b"
    body = {"source": {"namespace": ["main"], "name": name}, "destination": {"namespace": ["main"], "name": target}}
    before: dict[str, Rows] = {name: BASE_ROWS, target: None}
    return Asked("POST", "tables/rename", body, before, {name: None, target: BASE_ROWS}, is_known=False)


KINDS: Mapping[str, Callable[[Stand, str], Asked]] = {
    kind.__name__: kind
    for kind in (
        append,
        delete_positions,
        delete_inlined,
        delete_equal,
        delete_vector,
        create,
        create_staged,
        replace_table,
        drop_purged,
        change_two_tables,
        change_schema,
        rename,
        *NOTE_KINDS,
        *NAME_KINDS,
    )
}

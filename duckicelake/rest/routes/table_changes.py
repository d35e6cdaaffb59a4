"""Tables: made, changed, dropped, renamed."""

from typing import Annotated, Any

from fastapi import Query, Response

from duckicelake.catalog.tables import Ident
from duckicelake.catalog.writing import commit, tables
from duckicelake.catalog.writing.bases import Ask
from duckicelake.catalog.writing.lifecycle import registration
from duckicelake.catalog.writing.once import run_once
from duckicelake.catalog.writing.tables import load_committed
from duckicelake.errors import BadRequest
from duckicelake.iceberg.encoding.json_body import decode_json
from duckicelake.iceberg.requests.bodies import Identifier, parse_commit_table, parse_create_table, parse_transaction
from duckicelake.rest.bodies import CommitTableResponse, LoadTableResult
from duckicelake.rest.door import Door
from duckicelake.rest.params import Levels, Prefix, TableName, check_name
from duckicelake.rest.ready import build_ready_answer
from duckicelake.rest.requests import (
    FLAG,
    OBJECT,
    OBJECTS,
    TEXT,
    TEXT_MAP,
    Body,
    Key,
    check_identifier,
    decode_register,
    decode_rename,
    describe_body,
)
from duckicelake.rest.routes.tables import build_response, encode_commit_result, encode_load_result
from duckicelake.rest.served import Served

CREATED: dict[int | str, dict[str, Any]] = {200: {"model": LoadTableResult, "description": "The table's metadata, with an ETag."}}
COMMITTED: dict[int | str, dict[str, Any]] = {200: {"model": CommitTableResponse, "description": "The metadata after the commit."}}
CREATE_BODY = describe_body(
    ["name", "schema"],
    {
        "name": TEXT,
        "schema": OBJECT,
        "location": TEXT,
        "partition-spec": OBJECT,
        "write-order": OBJECT,
        "stage-create": FLAG,
        "properties": TEXT_MAP,
    },
)
REGISTER_BODY = describe_body(["name", "metadata-location"], {"name": TEXT, "metadata-location": TEXT, "overwrite": FLAG})
COMMIT_BODY = describe_body(["requirements", "updates"], {"identifier": OBJECT, "requirements": OBJECTS, "updates": OBJECTS})


class TableChangeRoutes:
    """Answers the operations that change tables."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def operations(self) -> dict[str, Served]:
        """Return what this module serves."""
        return {
            "createTable": Served(self.create_table, responses=CREATED, body=CREATE_BODY),
            "registerTable": Served(self.register_table, responses=CREATED, body=REGISTER_BODY),
            "updateTable": Served(self.update_table, responses=COMMITTED, body=COMMIT_BODY),
            "dropTable": Served(self.drop_table, status=204),
            "renameTable": Served(
                self.rename_table, status=204, body=describe_body(["source", "destination"], {"source": OBJECT, "destination": OBJECT})
            ),
            "commitTransaction": Served(
                self.commit_transaction, status=204, body=describe_body(["table-changes"], {"table-changes": OBJECTS})
            ),
        }

    def create_table(self, prefix: Prefix, levels: Levels, body: Body, key: Key) -> Response:
        """Create a table in a namespace, or stage it for a commit that creates it."""
        asked = parse_create_table(decode_json(body))
        ident = Ident(levels, check_name(asked.name, "table"))
        warehouse = self._door.get_lake(prefix).warehouse
        made = run_once(warehouse, key, lambda w: tables.create_table(w, ident, asked), lambda w: load_committed(w, ident))
        return build_response(build_ready_answer(encode_load_result(made), is_kept=False), [])

    def register_table(self, prefix: Prefix, levels: Levels, body: Body, key: Key) -> Response:
        """Bring a dropped table back by its newest metadata file."""
        asked = decode_register(body)
        if asked.overwrite:
            raise BadRequest("Registering over a table is not taken yet; drop that first, and send overwrite=false.")
        warehouse, ident = self._door.get_lake(prefix).warehouse, Ident(levels, asked.name)
        made = run_once(
            warehouse, key, lambda w: registration.register_table(w, ident, asked.metadata_location), lambda w: load_committed(w, ident)
        )
        return build_response(build_ready_answer(encode_load_result(made), is_kept=False), [])

    def update_table(self, prefix: Prefix, levels: Levels, name: TableName, body: Body, key: Key) -> Response:
        """Commit updates to a table."""
        asked = parse_commit_table(decode_json(body))
        ident = Ident(levels, name)
        if asked.identifier is not None and to_ident(asked.identifier) != ident:
            raise BadRequest(f"The body names the table {to_ident(asked.identifier)}, and the path {ident}; send one of them.")
        warehouse = self._door.get_lake(prefix).warehouse
        done = run_once(warehouse, key, lambda w: commit.commit_table(w, ident, asked), lambda w: load_committed(w, ident))
        return build_response(build_ready_answer(encode_commit_result(done), is_kept=False), [])

    def drop_table(
        self,
        prefix: Prefix,
        levels: Levels,
        name: TableName,
        key: Key,
        purge: Annotated[bool, Query(alias="purgeRequested", description="The client wants the files gone too.")] = False,
    ) -> Response:
        """Drop a table from the catalog."""
        warehouse = self._door.get_lake(prefix).warehouse
        run_once(warehouse, key, lambda w: tables.drop_table(w, Ident(levels, name), purged=purge), lambda _: None)
        return Response(status_code=204)

    def rename_table(self, prefix: Prefix, body: Body, key: Key) -> Response:
        """Rename a table, within its namespace or into another."""
        asked = decode_rename(body)
        source, target = to_ident(asked.source), to_ident(asked.destination)
        run_once(self._door.get_lake(prefix).warehouse, key, lambda w: tables.rename_table(w, source, target), lambda _: None)
        return Response(status_code=204)

    def commit_transaction(self, prefix: Prefix, body: Body, key: Key) -> Response:
        """Commit updates to several tables, all or none."""
        asks: list[Ask] = []
        for asked in parse_transaction(decode_json(body)):
            assert asked.identifier is not None
            asks.append(Ask(to_ident(check_identifier(asked.identifier)), asked))
        run_once(self._door.get_lake(prefix).warehouse, key, lambda w: commit.commit_tables(w, asks), lambda _: None)
        return Response(status_code=204)


def to_ident(identifier: Identifier) -> Ident:
    """Return a body's identifier as the verbs take it."""
    return Ident(identifier.namespace, identifier.name)

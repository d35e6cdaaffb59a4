"""Views: made, registered, changed, renamed, dropped."""

from fastapi import Response

from duckicelake.access.policy import VIEW
from duckicelake.catalog.tables import Ident
from duckicelake.catalog.views import changes
from duckicelake.catalog.views.loading import load_committed
from duckicelake.catalog.writing.once import run_once
from duckicelake.errors import BadRequest, NoSuchView
from duckicelake.iceberg.encoding.json_body import decode_json
from duckicelake.iceberg.encoding.json_reader import as_object, get_text
from duckicelake.iceberg.names import check_name
from duckicelake.iceberg.requests.bodies import parse_commit_view, parse_create_view
from duckicelake.rest.auth.at import AtParam
from duckicelake.rest.auth.permissions import check_moved, check_rename
from duckicelake.rest.door import Door
from duckicelake.rest.page.changes import CREATE_VIEW, REGISTER_VIEW, RENAME, VIEW_COMMIT
from duckicelake.rest.params import Levels, Prefix, ViewName
from duckicelake.rest.requests import Body, Key, decode_rename, describe_body
from duckicelake.rest.routes.table_changes import about, to_ident, to_levels
from duckicelake.rest.routes.views import LOADED, build_view_response
from duckicelake.rest.served import Served

REGISTER = "request to register a view"


class ViewChangeRoutes:
    """Answers the operations that change views."""

    def __init__(self, door: Door) -> None:
        self._door = door

    def operations(self) -> dict[str, Served]:
        """Return what this module serves."""
        return {
            "createView": Served(self.create_view, responses=LOADED, body=describe_body(CREATE_VIEW)),
            "registerView": Served(self.register_view, responses=LOADED, body=describe_body(REGISTER_VIEW)),
            "replaceView": Served(self.replace_view, responses=LOADED, body=describe_body(VIEW_COMMIT)),
            "dropView": Served(self.drop_view, status=204),
            "renameView": Served(self.rename_view, status=204, body=describe_body(RENAME)),
        }

    def create_view(self, at: AtParam, levels: Levels, body: Body, key: Key) -> Response:
        """Create a view in a namespace."""
        asked = parse_create_view(decode_json(body))
        ident = Ident(levels, check_name(asked.name, "view"))
        warehouse = self._door.get_warehouse(at)
        once = about(key, ident)
        made = run_once(warehouse, once, lambda w: changes.create_view(w, ident, asked), lambda w, uuid: load_committed(w, ident, uuid))
        check_moved(at.session, VIEW, to_levels(made.moved_to))
        return build_view_response(made)

    def register_view(self, at: AtParam, levels: Levels, body: Body, key: Key) -> Response:
        """Register a view by its metadata file."""
        node = as_object(decode_json(body), REGISTER)
        ident = Ident(levels, check_name(get_text(node, "name", REGISTER), "view"))
        location = get_text(node, "metadata-location", REGISTER)
        warehouse = self._door.get_lake(at.prefix).warehouse
        once = about(key, ident)
        made = run_once(
            warehouse, once, lambda w: changes.register_view(w, ident, location), lambda w, uuid: load_committed(w, ident, uuid)
        )
        check_moved(at.session, VIEW, to_levels(made.moved_to))
        return build_view_response(made)

    def replace_view(self, at: AtParam, levels: Levels, name: ViewName, body: Body, key: Key) -> Response:
        """Commit updates to a view."""
        asked = parse_commit_view(decode_json(body))
        ident = Ident(levels, name)
        if asked.identifier is not None and to_ident(asked.identifier) != ident:
            raise BadRequest(f"The body names the view {to_ident(asked.identifier)}, and the path {ident}; send one of them.")
        warehouse = self._door.get_warehouse(at)
        done = run_once(warehouse, key, lambda w: changes.replace_view(w, ident, asked), lambda w, uuid: load_committed(w, ident, uuid))
        check_moved(at.session, VIEW, to_levels(done.moved_to))
        return build_view_response(done)

    def drop_view(self, prefix: Prefix, levels: Levels, name: ViewName, key: Key) -> Response:
        """Drop a view from the catalog."""
        warehouse = self._door.get_lake(prefix).warehouse
        run_once(warehouse, key, lambda w: changes.drop_view(w, Ident(levels, name)), lambda _, __: None)
        return Response(status_code=204)

    def rename_view(self, at: AtParam, body: Body, key: Key) -> Response:
        """Rename a view, within its namespace or into another."""
        asked = decode_rename(body)
        source, target = to_ident(asked.source), to_ident(asked.destination)
        check_rename(at.session, (*source.namespace, source.name), (*target.namespace, target.name), NoSuchView)
        once = about(key, source, target)
        run_once(self._door.get_lake(at.prefix).warehouse, once, lambda w: changes.rename_view(w, source, target), lambda _, __: None)
        return Response(status_code=204)

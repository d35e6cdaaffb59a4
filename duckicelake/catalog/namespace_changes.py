"""Create and drop namespaces, and change their properties; nest the schemas of a lake that was migrated to DuckLake 1.1.

`rest.routes.namespaces` calls this on worker threads, and `duckicelake lake nest` calls `nest_schemas`. Each function is one commit of the
lake, in a transaction under its lock, with the audit line and the idempotency key of a request. The property `location` says where clients'
new tables and views of the namespace lie (`location_rules`). If it is in another bucket than ICEBERG_PATH, a test object is written there
before the lake's lock is taken (`check_store`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from uuid import uuid4

import psycopg

from duckicelake.catalog.dropped.protection import check_may_drop_namespace
from duckicelake.catalog.location_rules import check_namespace_location, check_store
from duckicelake.catalog.namespaces import Namespace, find_schema, format_levels, get_parent, has_child_namespaces
from duckicelake.catalog.warehouse import Warehouse
from duckicelake.errors import AlreadyExists, BadRequest, NamespaceNotEmpty, NoSuchNamespace, Unprocessable
from duckicelake.lake.branches.registry import list_branches
from duckicelake.lake.changes import Change
from duckicelake.lake.connect import Lake, reading
from duckicelake.lake.note_rows import EndedView, NewView
from duckicelake.lake.read import read_data_path, read_schemas, read_tags
from duckicelake.lake.writing.apply import write_steps
from duckicelake.lake.writing.lookups import has_children
from duckicelake.lake.writing.migrate import (
    FlatSchema,
    move_schema_options,
    read_flat_schemas,
    read_member_names,
    read_members,
    read_naming_views,
    read_schema_settings,
)
from duckicelake.lake.writing.rows import EndedSchema
from duckicelake.lake.writing.transaction import Commit, committing
from duckicelake.translate.locations import NAMESPACE_LOCATION, table_folder
from duckicelake.translate.namespaces import (
    Levels,
    ParentSchema,
    SchemaToRestore,
    change_tags,
    create_schema,
    drop_schema,
    fold_name,
    restore_schema,
    to_levels,
    to_schema_name,
    update_schema,
)
from duckicelake.translate.to_ducklake.tables import IdAllocator, TableStep, TableTarget, rename_table, to_lake_steps

MAIN = "main"


@dataclass(frozen=True, slots=True)
class ChangedProperties:
    """The outcome for the properties that a client named."""

    updated: Sequence[str]
    removed: Sequence[str]
    missing: Sequence[str]


def create_namespace(warehouse: Warehouse, levels: Levels, properties: Mapping[str, str]) -> Namespace:
    """Make a namespace.

    Raises: AlreadyExists: there is one of that name, in any case. What `check_namespace_location` raises
    """
    to_schema_name(levels)
    _check_location(warehouse, properties)
    with committing(warehouse.lake) as commit:
        if _exists(commit, levels):
            raise AlreadyExists(f"Namespace already exists: {format_levels(levels)}")
        _write_schema(commit, levels, properties)
    return Namespace(levels, dict(properties))


def _check_location(warehouse: Warehouse, properties: Mapping[str, str]) -> None:
    # Each new table checks it again: allowed_locations may change, and a table may be made around it.
    location = properties.get(NAMESPACE_LOCATION)
    if location is None:
        return
    with reading(warehouse.lake) as conn:
        check_namespace_location(conn, location, warehouse.roots)
    check_store(warehouse, location, None)


def _write_schema(commit: Commit, levels: Levels, properties: Mapping[str, str]) -> None:
    """Create the schema of a namespace: where the lake's version nests schemas, one for each level that has none yet."""
    if not commit.head.lake_format.nests_schemas:
        write_steps(commit, [create_schema(commit.head, ParentSchema(), [to_schema_name(levels)], properties)])
        return
    parent, depth = ParentSchema(), 0
    for count in range(len(levels) - 1, 0, -1):
        found = find_schema(commit.conn, levels[:count])
        if found is not None:
            parent, depth = ParentSchema(found.schema_id, found.schema_names), count
            break
    write_steps(commit, [create_schema(commit.head, parent, levels[depth:], properties)])


def _exists(commit: Commit, levels: Levels) -> bool:
    return find_schema(commit.conn, levels) is not None or has_child_namespaces(commit.conn, levels)


def drop_namespace(warehouse: Warehouse, levels: Levels) -> None:
    """Drop an empty namespace.

    Raises: NoSuchNamespace: it does not exist. NamespaceNotEmpty: tables, views or namespaces are in it.
    BadRequest: it is DuckLake's own default. DropProtected: a property protects it
    """
    with committing(warehouse.lake) as commit:
        schema = find_schema(commit.conn, levels)
        if has_child_namespaces(commit.conn, levels) or (schema is not None and has_children(commit.conn, schema.schema_id)):
            raise NamespaceNotEmpty(f"Namespace {format_levels(levels)} is not empty. Drop what is in it first.")
        if schema is None:
            raise NoSuchNamespace(f"Namespace does not exist: {format_levels(levels)}")
        if schema.schema_name == MAIN:
            raise BadRequest(f"Namespace {MAIN!r} is where DuckDB starts in every lake; it stays.")
        check_may_drop_namespace(commit.conn, schema)
        write_steps(commit, [drop_schema(commit.head, schema.schema_id)])


def update_properties(warehouse: Warehouse, levels: Levels, removals: Sequence[str], updates: Mapping[str, str]) -> ChangedProperties:
    """Change a namespace's properties; one that only its children imply becomes a schema of its own.

    Raises: NoSuchNamespace: it does not exist. Unprocessable: a property is to be set and removed. What `check_namespace_location` raises
    """
    both = sorted(updates.keys() & set(removals))
    if both:
        raise Unprocessable(f"Properties {', '.join(both)} are to be set and to be removed; send each in one of the lists.")
    _check_location(warehouse, updates)
    with committing(warehouse.lake) as commit:
        schema = find_schema(commit.conn, levels)
        if schema is None:
            stored = get_parent(commit.conn, levels)
            if updates:
                _write_schema(commit, stored, updates)
            return ChangedProperties(sorted(updates), [], list(dict.fromkeys(removals)))
        live = {tag.key: tag.value for tag in read_tags(commit.conn, schema.schema_id) if tag.value is not None}
        rows = change_tags(schema.schema_id, live, removals, updates)
        write_steps(commit, [update_schema(commit.head, rows)] if rows else [])
    wanted = list(dict.fromkeys(removals))
    removed, missing = [key for key in wanted if key in live], [key for key in wanted if key not in live]
    return ChangedProperties(sorted(updates), removed, missing)


@dataclass(frozen=True, slots=True)
class NestingReport:
    """The namespaces whose schemas are nested now, what stands against that, and the views that name a schema that is gone."""

    nested: Sequence[str]
    obstacles: Sequence[str]
    outdated_views: Sequence[str]


def nest_schemas(lake: Lake, *, is_dry_run: bool) -> NestingReport:
    """Turn the schemas that stand for nested namespaces since DuckLake 1.0 into nested ones, in one lake snapshot, or only try to.

    Each keeps its uuid, and so its grants, its properties and its DuckLake options; its tables and views keep their ids and files.
    If the nested schema exists already, it must have the same grants, and all properties and options of the flat one.
    If there are obstacles, as branches and tags are, nothing is changed. Raises: BadRequest: the lake has DuckLake 1.0
    """
    with committing(lake) as commit:
        if not commit.head.lake_format.nests_schemas:
            raise BadRequest("The lake has DuckLake 1.0, whose schemas cannot be nested; run `duckicelake lake migrate` first.")
        nesting = _Nesting(commit, IdAllocator(commit.head.next_catalog_id, commit.head.next_file_id))
        flat = [(to_levels(schema.schema_name), schema) for schema in read_flat_schemas(commit.conn)]
        for levels, schema in sorted((item for item in flat if len(item[0]) > 1), key=lambda item: len(item[0])):
            nesting.add(levels, schema)
        if nesting.nested and (branches := [branch.name for branch in list_branches(commit.conn)]):
            names = ", ".join(branches)
            nesting.obstacles.append(f"The lake has branches or tags, which keep the schemas as they are: {names}. Delete them.")
        if nesting.nested and not nesting.obstacles and not is_dry_run:
            write_steps(commit, to_lake_steps(commit.head, nesting.ids, [[nesting.step]]))
            for old_id, new_id in nesting.replaced.items():
                move_schema_options(commit.conn, old_id, new_id)
    return NestingReport(nesting.nested, nesting.obstacles, nesting.outdated_views)


@dataclass(slots=True)
class _Nesting:
    """The step that nests schemas, as far as it has been put together. `known` are the schemas by their folded levels."""

    commit: Commit
    ids: IdAllocator
    step: TableStep = field(default_factory=lambda: TableStep(changes_catalog=True))
    nested: list[str] = field(default_factory=list[str])
    obstacles: list[str] = field(default_factory=list[str])
    outdated_views: list[str] = field(default_factory=list[str])
    replaced: dict[int, int] = field(default_factory=dict[int, int])
    known: dict[Levels, ParentSchema] = field(init=False)
    taken: dict[Levels, set[str]] = field(default_factory=dict[Levels, set[str]])

    def __post_init__(self) -> None:
        schemas = read_schemas(self.commit.conn)
        self.known = {_fold(tuple(row.schema_names)): ParentSchema(row.schema_id, row.schema_names) for row in schemas}

    def add(self, levels: Levels, flat: FlatSchema) -> None:
        """Add the rows that move everything in a schema into the nested one, which is created unless it is there, and drop the schema."""
        conn, key = self.commit.conn, _fold(levels)
        members, found = read_members(conn, flat.schema_id), self.known.get(key)
        if found is not None and key not in self.taken and found.schema_id is not None:
            self.taken[key] = {fold_name(name) for _, name in read_member_names(conn, found.schema_id)}
        self._find_obstacles(levels, members.names, self.taken.setdefault(key, set()))
        self.nested.append(format_levels(levels))
        self.outdated_views += read_naming_views(conn, flat.schema_name)
        target = found or self._create(levels, flat)
        assert target.schema_id is not None
        if found is None:
            self.replaced[flat.schema_id] = target.schema_id
        else:
            self.obstacles += _list_differences(conn, format_levels(levels), flat.schema_id, target.schema_id)
        stays = found is None and flat.path_is_relative
        for table in members.tables:
            place = self._place(target, table.table_name)
            folder = table.path if stays else table_folder(read_data_path(conn), table)
            moved = rename_table(table, place, folder, path_is_relative=stays and table.path_is_relative)
            self.step.changes += moved.changes
            self.step.rows += moved.rows
        for view in members.views:
            place = self._place(target, view.view_name)
            self.step.changes += [Change("created_view", place.quoted), Change("altered_view", str(view.view_id))]
            row = NewView(view.view_id, view.view_uuid, place.schema_id, view.view_name, view.sql, view.column_aliases)
            self.step.rows += [EndedView(view.view_id), row]
        self.step.changes.append(Change("dropped_schema", str(flat.schema_id)))
        self.step.rows.append(EndedSchema(flat.schema_id))

    def _find_obstacles(self, levels: Levels, members: Sequence[tuple[str, str]], taken: set[str]) -> None:
        for kind, name in members:
            if kind == "macro":
                self.obstacles.append(
                    f"The macro {name!r} of {format_levels(levels)} cannot be moved: drop it, and create it again afterwards."
                )
            elif fold_name(name) in taken:
                self.obstacles.append(f"{format_levels(levels)} has two schemas, each with a {kind} {name!r}: rename one.")
            taken.add(fold_name(name))

    def _create(self, levels: Levels, flat: FlatSchema) -> ParentSchema:
        """Create the nested schema under the uuid and path of the former one, after the parents that are missing."""
        parent = ParentSchema()
        for depth, name in enumerate(levels[:-1], 1):
            parent = self.known.get(_fold(levels[:depth])) or self._create_one(parent, name, levels[:depth])
        tags = {tag.key: tag.value for tag in read_tags(self.commit.conn, flat.schema_id) if tag.value is not None}
        path = flat.path if flat.path_is_relative else None
        same = SchemaToRestore(self.ids.take_catalog_id(), flat.schema_uuid, path or f"{flat.schema_uuid}/", tags)
        return self._write(same, parent, levels)

    def _create_one(self, parent: ParentSchema, name: str, levels: Levels) -> ParentSchema:
        uuid = uuid4()
        path = None if parent.schema_id is None else f"{uuid}/"
        return self._write(SchemaToRestore(self.ids.take_catalog_id(), uuid, path, {}), parent, levels)

    def _write(self, schema: SchemaToRestore, parent: ParentSchema, levels: Levels) -> ParentSchema:
        change, rows = restore_schema(schema, parent, levels[-1])
        self.step.changes.append(change)
        self.step.rows += rows
        made = self.known[_fold(levels)] = ParentSchema(schema.schema_id, (*parent.schema_names, levels[-1]))
        return made

    def _place(self, target: ParentSchema, name: str) -> TableTarget:
        assert target.schema_id is not None
        names = tuple(target.schema_names)
        return TableTarget(target.schema_id, to_schema_name(names), names, name, self.commit.head.lake_format)


def _list_differences(conn: psycopg.Connection, namespace: str, flat_id: int, nested_id: int) -> list[str]:
    """Return the obstacles to moving what is in a flat schema into an existing nested one: what its tables would lose, or who gains rights.

    Clients reach the nested one alone under the namespace's name, so each remedy changes that one.
    """
    flat, nested = read_schema_settings(conn, flat_id), read_schema_settings(conn, nested_id)
    start = f"{namespace} has two schemas, and only the"
    remedies = {
        "property": f"set it in {namespace}; it may be changed again afterwards.",
        "option": f"give it to the nested one, or delete the flat one's row in ducklake_metadata (scope_id {flat_id}).",
        "grant": f"grant that on {namespace}; it may be revoked afterwards.",
    }
    lost = [f"{start} flat one has the {i.kind} {i.key!r} = {i.value!r}: {remedies[i.kind]}" for i in sorted(flat - nested)]
    gained = [
        f"{start} nested one has the grant {i.key!r} = {i.value!r}: revoke it on {namespace}; it may be granted again afterwards."
        for i in sorted(nested - flat)
        if i.kind == "grant"
    ]
    return [*lost, *gained]


def _fold(levels: Levels) -> Levels:
    return tuple(map(fold_name, levels))

"""The metadata of new views, and of views after the updates of a commit. No I/O.

`catalog.views` calls this before the lake's lock and again under it; `translate.views` calls it to show what DuckDB changed.

The rules and messages are those of Java's `ViewMetadata.Builder`, with one difference: LAST_ADDED also means a schema or version
that existed before this request added it again.

Source: Iceberg REST specification «ViewUpdate»; Java `ViewMetadata.Builder`
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from duckicelake.errors import BadRequest
from duckicelake.iceberg.requests.bodies import CreateView
from duckicelake.iceberg.requests.table_changes import NewIdentity
from duckicelake.iceberg.requests.table_draft import resolve_last_added
from duckicelake.iceberg.requests.updates import (
    LAST_ADDED,
    AddSchema,
    AddViewVersion,
    AssignUuid,
    RemoveProperties,
    SetCurrentViewVersion,
    SetLocation,
    SetProperties,
    UpgradeFormatVersion,
    ViewUpdate,
)
from duckicelake.iceberg.schema import is_same_schema
from duckicelake.iceberg.view_metadata import VIEW_FORMAT_VERSION, ViewMetadata, ViewVersion, get_current_version

HISTORY_SIZE = "version.history.num-entries"
HISTORY_SIZE_DEFAULT = 10
DROP_DIALECT = "replace.drop-dialect.allowed"

_COUNT = re.compile(r"[+-]?\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ViewDraft:
    """The metadata so far, the meaning of LAST_ADDED, and the versions that this request added."""

    view: ViewMetadata
    now_ms: int
    last_schema_id: int | None = None
    last_version_id: int | None = None
    added_version_ids: frozenset[int] = frozenset()
    log_entry: tuple[int, int] | None = None


def build_new_view(request: CreateView, identity: NewIdentity) -> ViewMetadata:
    """Return the metadata of a new view: schema 0, version 1."""
    version = replace(request.version, version_id=1, schema_id=0)
    view = ViewMetadata(
        view_uuid=identity.uuid,
        format_version=VIEW_FORMAT_VERSION,
        location=identity.location,
        schemas=(replace(request.schema, schema_id=0),),
        current_version_id=1,
        versions=(version,),
        version_log=((version.timestamp_ms, 1),),
        properties=dict(request.properties),
    )
    _get_history_size(view.properties)
    return view


def apply_view_updates(base: ViewMetadata, updates: Sequence[ViewUpdate], now_ms: int) -> ViewMetadata:
    """Return the view after the updates, in their order; `base` itself when they change nothing.

    Raises: BadRequest — malformed, unknown or contradictory, or a dialect would be lost
    """
    draft = reduce(_apply, updates, ViewDraft(base, now_ms))
    if draft.view == base:
        return base
    view = draft.view
    if view.properties.get(DROP_DIALECT, "").lower() != "true":
        _check_dialects_kept(get_current_version(base), get_current_version(view))
    log = view.version_log if draft.log_entry is None else (*view.version_log, draft.log_entry)
    return _expire_versions(replace(view, version_log=log), draft.added_version_ids)


def _apply(draft: ViewDraft, update: ViewUpdate) -> ViewDraft:
    match update:
        case AddSchema():
            return _add_schema(draft, update)
        case AddViewVersion():
            return _add_version(draft, update)
        case SetCurrentViewVersion():
            return _set_current_version(draft, update)
        case _:
            return replace(draft, view=_apply_plain(draft.view, update))


def _apply_plain(
    view: ViewMetadata, update: AssignUuid | UpgradeFormatVersion | SetLocation | SetProperties | RemoveProperties
) -> ViewMetadata:
    match update:
        case AssignUuid(uuid):
            if uuid.lower() != view.view_uuid.lower():
                raise BadRequest("Cannot reassign uuid")
            return view
        case UpgradeFormatVersion(wanted):
            if wanted < view.format_version:
                raise BadRequest(f"Cannot downgrade v{view.format_version} view to v{wanted}")
            if wanted > VIEW_FORMAT_VERSION:
                raise BadRequest(f"Unsupported format version: {wanted}")
            return view
        case SetLocation(location):
            return replace(view, location=location)
        case SetProperties(updates):
            return replace(view, properties={**view.properties, **updates})
        case RemoveProperties(removals):
            return replace(view, properties={name: value for name, value in view.properties.items() if name not in removals})


def _add_schema(draft: ViewDraft, update: AddSchema) -> ViewDraft:
    schemas = draft.view.schemas
    found = next((item for item in schemas if is_same_schema(item, update.schema)), None)
    if found is not None:
        return replace(draft, last_schema_id=found.schema_id)
    schema_id = max([0, *[item.schema_id + 1 for item in schemas]])
    view = replace(draft.view, schemas=(*schemas, replace(update.schema, schema_id=schema_id)))
    return replace(draft, view=view, last_schema_id=schema_id)


def _add_version(draft: ViewDraft, update: AddViewVersion) -> ViewDraft:
    view, version = draft.view, update.version
    if version.schema_id == LAST_ADDED:
        version = replace(version, schema_id=resolve_last_added(LAST_ADDED, draft.last_schema_id, "schema"))
    found = next((item for item in view.versions if _is_same_version(item, version)), None)
    if found is not None:
        return replace(draft, last_version_id=found.version_id)
    if all(item.schema_id != version.schema_id for item in view.schemas):
        raise BadRequest(f"Cannot add version with unknown schema: {version.schema_id}")
    version_id = max([version.version_id, *[item.version_id + 1 for item in view.versions]])
    added = replace(view, versions=(*view.versions, replace(version, version_id=version_id)))
    return replace(draft, view=added, last_version_id=version_id, added_version_ids=draft.added_version_ids | {version_id})


def _set_current_version(draft: ViewDraft, update: SetCurrentViewVersion) -> ViewDraft:
    if update.version_id == LAST_ADDED and draft.last_version_id is None:
        raise BadRequest("Cannot set last version id: no current version id has been set")
    version_id = resolve_last_added(update.version_id, draft.last_version_id, "version")
    if version_id == draft.view.current_version_id:
        return draft
    version = next((item for item in draft.view.versions if item.version_id == version_id), None)
    if version is None:
        raise BadRequest(f"Cannot set current version to unknown version: {version_id}")
    at_ms = version.timestamp_ms if version_id in draft.added_version_ids else draft.now_ms
    return replace(draft, view=replace(draft.view, current_version_id=version_id), log_entry=(at_ms, version_id))


def _is_same_version(a: ViewVersion, b: ViewVersion) -> bool:
    return replace(a, version_id=0, timestamp_ms=0) == replace(b, version_id=0, timestamp_ms=0)


def _check_dialects_kept(before: ViewVersion, after: ViewVersion) -> None:
    old, new = _list_dialects(before), _list_dialects(after)
    if not set(old) <= set(new):
        raise BadRequest(
            f"Cannot replace view due to loss of view dialects ({DROP_DIALECT}=false):\n"
            f"Previous dialects: [{', '.join(old)}]\nNew dialects: [{', '.join(new)}]"
        )


def _list_dialects(version: ViewVersion) -> list[str]:
    return [item.dialect.lower() for item in version.representations]


def _get_history_size(properties: Mapping[str, str]) -> int:
    text = properties.get(HISTORY_SIZE)
    if text is None:
        return HISTORY_SIZE_DEFAULT
    if _COUNT.fullmatch(text) is None or int(text) <= 0:
        raise BadRequest(f"{HISTORY_SIZE} must be positive but was {text[:100]}")
    return int(text)


def _expire_versions(view: ViewMetadata, added: frozenset[int]) -> ViewMetadata:
    """Return the view with its current version, those just added, and the newest ones up to the history size; the log has no gap."""
    size = max(_get_history_size(view.properties), len(added | {view.current_version_id}))
    newest = sorted((item.version_id for item in view.versions), reverse=True)
    others = [version_id for version_id in newest if version_id != view.current_version_id]
    kept = {view.current_version_id, *others[: size - 1]}
    log: list[tuple[int, int]] = []
    for at_ms, version_id in view.version_log:
        if version_id in kept:
            log.append((at_ms, version_id))
        else:
            log.clear()
    return replace(view, versions=tuple(item for item in view.versions if item.version_id in kept), version_log=tuple(log))

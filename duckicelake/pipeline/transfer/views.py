"""Views of one catalog as those of another: the same text, under names that mean the same; pure."""

from dataclasses import replace

from duckicelake.iceberg.view_metadata import ViewMetadata, ViewVersion, get_current_version

FIRST_VERSION, FIRST_SCHEMA = 1, 0


def localise(view: ViewMetadata, catalog_name: str | None, into: tuple[str, ...]) -> ViewMetadata:
    """The present version alone, as the first one. Names without a catalog mean the target, and their namespaces are where `into` put them.

    `catalog_name`: what the source calls itself.
    """
    version = get_current_version(view)
    schema = next(one for one in view.schemas if one.schema_id == version.schema_id)
    default_catalog = None if version.default_catalog == catalog_name else version.default_catalog
    moved = replace(
        version,
        version_id=FIRST_VERSION,
        schema_id=FIRST_SCHEMA,
        default_catalog=default_catalog,
        default_namespace=(*into, *version.default_namespace) if default_catalog is None else version.default_namespace,
    )
    return replace(
        view, current_version_id=FIRST_VERSION, versions=(moved,), schemas=(replace(schema, schema_id=FIRST_SCHEMA),), version_log=()
    )


def same_view(one: ViewMetadata, other: ViewMetadata) -> bool:
    """Whether both say the same."""
    return _get_content(get_current_version(one)) == _get_content(get_current_version(other))


def _get_content(version: ViewVersion) -> tuple[object, ...]:
    texts = frozenset((item.dialect, item.sql) for item in version.representations)
    return texts, version.default_namespace, version.default_catalog

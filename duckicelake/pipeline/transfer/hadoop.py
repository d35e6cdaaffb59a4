"""A Hadoop warehouse: folders are namespaces and tables, and the newest `vN.metadata.json` in a row is the table.

Source: Iceberg, HadoopTableOperations and HadoopCatalog
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from duckicelake.errors import BadRequest, CommitFailed, NoSuchTable, ServiceUnavailable
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.view_metadata import ViewMetadata
from duckicelake.pipeline.common.rest import TableIdent
from duckicelake.pipeline.common.storage import DELTA_LOG, Child, StoredFiles
from duckicelake.pipeline.transfer.catalogs import Entry, ScratchCatalog, TransferTable, UnfinishedCopy, parse_table_file, refuse_views
from duckicelake.pipeline.transfer.copies import Store, describe_new, encode_published, join_location, name_staged, write_rows

METADATA, HINT = "metadata", "version-hint.text"
ENDS = (".metadata.json", ".metadata.json.gz")
NAMES = ("v{}.metadata.json", "v{}.gz.metadata.json", "v{}.metadata.json.gz")
"""In the order in which Java looks for them."""
NO_KEYS: Mapping[str, str] = {}
_VERSION = re.compile(r"v(\d{1,9})(?:\.gz)?\.metadata\.json(?:\.gz)?")
_LEVELS_OF_A_TABLE = 2
_NUMBER = re.compile(r"[+-]?\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True)
class HadoopWarehouse:
    """The tables below a folder, whose files are the catalog."""

    root: str
    store: Store

    @property
    def name(self) -> str:
        return self.root

    @property
    def identity(self) -> str:
        return self.root

    def list_entries(self) -> Iterator[Entry]:
        """Yield every folder below the root that is a table, or meant to be one; the root itself may be the only one."""
        objects = self.store.open(self.root, NO_KEYS)
        children = objects.list_folder(self.root)
        if not children:
            raise BadRequest(f"{self.root} is no folder, or has nothing in it")
        yield from self._walk(objects, (), children)

    def _walk(self, objects: StoredFiles, levels: tuple[str, ...], children: Collection[Child]) -> Iterator[Entry]:
        place = "/".join((self.root.rstrip("/"), *levels))
        if any(child.is_folder and child.name == METADATA for child in children) and _is_table(objects.list_folder(f"{place}/{METADATA}")):
            yield _name_entry(place, levels)
            return
        if is_delta(children):
            # It is no table of this warehouse, so it is reported as a failure and not passed over.
            yield _name_entry(place, levels)
            return
        for child in children:
            if child.is_folder:
                yield from self._look_into(objects, (*levels, child.name))

    def _look_into(self, objects: StoredFiles, levels: tuple[str, ...]) -> Iterator[Entry]:
        place = "/".join((self.root.rstrip("/"), *levels))
        try:
            found = list(self._walk(objects, levels, objects.list_folder(place)))
        except ServiceUnavailable:
            if len(levels) < _LEVELS_OF_A_TABLE:
                raise
            # The entry fails with the reason when it is loaded; the others are brought.
            found = [_name_entry(place, levels)]
        yield from found

    def load(self, entry: Entry) -> TransferTable:
        """Return the table in a folder, at its newest version. Raises: BadRequest: its files do not say which that is, or are damaged."""
        objects = self.store.open(entry.place, NO_KEYS)
        folder = f"{entry.place}/{METADATA}"
        if is_delta(objects.list_folder(entry.place)) and not objects.list_folder(folder):
            raise BadRequest("it is a Delta table: import it with --format delta")
        names = {child.name for child in objects.list_folder(folder)}
        hint = objects.read(f"{folder}/{HINT}") if HINT in names else None
        version = choose_version(hint, names)
        if version is None:
            raise BadRequest(f"{folder} has no metadata file of a Hadoop table")
        uri = f"{folder}/{version}"
        return TransferTable(entry.ident, parse_table_file(objects.read(uri), uri), uri, NO_KEYS)

    def load_view(self, entry: Entry) -> ViewMetadata:
        """Refuse: there are no views."""
        raise refuse_views("a Hadoop warehouse")

    def find(self, ident: TableIdent) -> TransferTable | None:
        """Return the table in the folder of that name."""
        place = join_location(self.root, ident)
        objects = self.store.open(place, NO_KEYS)
        if not _is_table(objects.list_folder(f"{place}/{METADATA}")):
            return None
        return self.load(Entry(ident, place=place))

    def open_rows(self, bench: ScratchCatalog, loaded: TransferTable) -> str:
        """Return the rows as of the metadata file that was read."""
        return bench.open_file(loaded.metadata_location, self.store.format_settings(NO_KEYS))

    def prepare(self, ident: TableIdent, asked: CreateTable) -> TransferTable:
        """Return a table in the folder that has its name."""
        location = join_location(self.root, ident)
        return TransferTable(ident, describe_new(asked, location), name_staged(location), NO_KEYS)

    def write(self, bench: ScratchCatalog, prepared: TransferTable, rows: str) -> TableMetadata:
        """Return files below the table's folder."""
        return write_rows(bench, self.store, prepared, rows, self.identity)

    def publish(self, prepared: TransferTable, written: TableMetadata) -> None:
        """Write version 1, which must not exist yet."""
        folder = f"{prepared.metadata.location}/{METADATA}"
        if not self.store.put_new(f"{folder}/v1.metadata.json", encode_published(replace(written, metadata_log=()))):
            raise CommitFailed(f"another session has just created {prepared.ident}")
        # Readers do without it.
        self.store.put_new(f"{folder}/{HINT}", b"1")

    def list_places(self, loaded: TransferTable) -> Iterable[str]:
        """Return the folder that has its name."""
        return [join_location(self.root, loaded.ident)]

    def give_up(self, begun: UnfinishedCopy, identity: str, *, is_there: bool) -> Collection[str]:
        """Return all of it: no other table can be in that folder."""
        return [*begun.metadata, *begun.data]


def _name_entry(place: str, levels: tuple[str, ...]) -> Entry:
    *namespace, name = levels or (place.rpartition("/")[2],)
    return Entry(TableIdent(tuple(namespace), name), place=place)


def is_delta(children: Collection[Child]) -> bool:
    """Return True if what lies in a folder is a Delta table."""
    return any(child.is_folder and child.name == DELTA_LOG for child in children)


def _is_table(children: Collection[Child]) -> bool:
    return any(child.name == HINT or child.name.endswith(ENDS) for child in children if not child.is_folder)


def choose_version(hint: bytes | None, names: Collection[str]) -> str | None:
    """Return the file of the newest version, as Java finds it: from the hint on as far as versions follow each other; None: there is none.

    A hint that is missing or torn counts as the highest version there is.
    Raises: NoSuchTable: the hint names a version that is not there
    """
    versions = {int(match[1]) for name in names if (match := _VERSION.fullmatch(name))}
    hinted = None if hint is None else _read_hint(hint)
    version = max(versions, default=0) if hinted is None else hinted
    if version not in versions:
        if version == 0:
            return None
        newest = f"the newest that is there is {max(versions)}: write that into {HINT}, if it is the table" if versions else "there is none"
        raise NoSuchTable(f"{HINT} names version {version}, which is missing; {newest}")
    while version + 1 in versions:
        version += 1
    return next(name for form in NAMES if (name := form.format(version)) in names)


def _read_hint(hint: bytes) -> int | None:
    first = hint.decode("utf-8", "replace").splitlines()[:1]
    return int(first[0]) if first and _NUMBER.fullmatch(first[0]) else None

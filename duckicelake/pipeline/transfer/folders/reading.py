"""What all folders of files have in common: they are found by walking, read by Spark, and never written."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from duckicelake.errors import BadRequest, Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.metadata import TableMetadata
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.view_metadata import ViewMetadata
from duckicelake.pipeline.ingest.sources import s3
from duckicelake.pipeline.objects import Child, TableObjects
from duckicelake.pipeline.rest import TableIdent
from duckicelake.pipeline.transfer.bench import ScratchCatalog
from duckicelake.pipeline.transfer.catalogs import Entry, LoadedTable, refuse_views
from duckicelake.pipeline.transfer.copies.found import UnfinishedCopy
from duckicelake.pipeline.transfer.files import Store
from duckicelake.pipeline.transfer.hadoop import NO_KEYS

DATABASE = ".db"


@dataclass(frozen=True, slots=True)
class ReadFolders(ABC):
    """A catalog that takes nothing in, of the tables below a root; `x.db` is the namespace `x`."""

    root: str
    store: Store

    @property
    def name(self) -> str:
        return self.root

    @property
    def identity(self) -> str:
        return self.root

    def list_tables_below(self, is_table: Callable[[list[Child]], bool], is_shown: Callable[[str], bool]) -> Iterator[Entry]:
        """Every folder that is a table by what lies in it; the root may be the only one. Names that are not shown are passed over.

        Raises: BadRequest: there is no such folder
        """
        objects = self.store.open(self.root, NO_KEYS)
        if not objects.list_folder(self.root):
            raise BadRequest(f"{self.root} is no folder, or has nothing in it")

        def walk(levels: tuple[str, ...]) -> Iterator[Entry]:
            place = "/".join((self.root, *levels))
            children = objects.list_folder(place)
            if is_table(children):
                *namespace, name = levels or (place.rpartition("/")[2],)
                yield Entry(TableIdent(tuple(level.removesuffix(DATABASE) for level in namespace), name), place=place)
                return
            for child in children:
                if child.is_folder and is_shown(child.name):
                    yield from walk((*levels, child.name))

        yield from walk(())

    def open_s3(self) -> s3.S3Store | None:
        """The store and who asks it, where the root is on S3. Raises: BadRequest: there are no keys to it"""
        return s3.open_store(self.store.format_settings(NO_KEYS)) if self.root.startswith(s3.SCHEMES) else None

    def list_names(self, place: str) -> list[str]:
        """What lies directly in a folder."""
        return [child.name for child in self.open(place).list_folder(place)]

    def open(self, place: str) -> TableObjects:
        """The objects of a folder's store."""
        return self.store.open(place, NO_KEYS)

    @abstractmethod
    def describe_files(self, loaded: LoadedTable) -> list[DataFile]:
        """What a manifest says of a table's files where they are. Raises: CatalogError: not all readers would read them alike"""

    def load_view(self, entry: Entry) -> ViewMetadata:
        """There are none."""
        raise refuse_views("a folder of files")

    def find(self, ident: TableIdent) -> LoadedTable | None:
        """Nothing is written there."""
        raise _refuse()

    def prepare(self, ident: TableIdent, asked: CreateTable) -> LoadedTable:
        """Nothing is written there."""
        raise _refuse()

    def write(self, bench: ScratchCatalog, prepared: LoadedTable, rows: str) -> TableMetadata:
        """Nothing is written there."""
        raise _refuse()

    def publish(self, prepared: LoadedTable, written: TableMetadata) -> None:
        """Nothing is written there."""
        raise _refuse()

    def list_places(self, loaded: LoadedTable) -> Iterable[str]:
        """Nothing is written there."""
        raise _refuse()

    def give_up(self, begun: UnfinishedCopy, identity: str, *, is_there: bool) -> Collection[str]:
        """Nothing is written there."""
        raise _refuse()


def _refuse() -> Unsupported:
    return Unsupported("folders of files are read, and not written")

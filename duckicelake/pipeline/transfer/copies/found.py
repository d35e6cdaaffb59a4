"""What a copy leaves where it is written, and how far it came, as its objects tell.

Each has two folders of its own below the table's location, and in the one of metadata `staged.metadata.json` from its first moment on,
`publishing` from when it may become known, and none of both when it is done.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from duckicelake.translate.locations import copy_folders, find_copy

STAGED, PUBLISHING = "staged.metadata.json", "publishing"
UNFINISHED = (".part-", ".tmp")
"""How objects are called that were being written on a local disk when their writer died."""


class CopyFiles(Protocol):
    """The objects of one store, by URI. Raises: CatalogError: it does not do what is asked"""

    def list_modified(self, prefix_uri: str) -> Iterator[tuple[str, datetime]]:
        """Each object in a folder and its folders, and when it was last written."""
        ...

    def read(self, uri: str) -> bytes:
        """An object."""
        ...

    def delete_many(self, uris: Iterable[str]) -> None:
        """Remove objects; those that are missing are fine."""
        ...


@dataclass(frozen=True, slots=True)
class UnfinishedCopy:
    """A copy that is not done: its objects with when they were written, and the metadata of others beside them."""

    metadata: Mapping[str, datetime]
    data: Mapping[str, datetime]
    beside: Collection[str]

    @property
    def newest(self) -> datetime:
        """When its run last gave a sign of life."""
        return max([*self.metadata.values(), *self.data.values()])

    @property
    def staged(self) -> str | None:
        """The metadata that it was begun with, if they are still there."""
        return next((uri for uri in self.metadata if get_file_name(uri) == STAGED), None)

    @property
    def publishing(self) -> str | None:
        """The object that says where it may have become known, if it came so far."""
        return next((uri for uri in self.metadata if get_file_name(uri) == PUBLISHING), None)


def list_unfinished_copies(files: CopyFiles, place: str) -> list[UnfinishedCopy]:
    """The copies in a place that are not done."""
    copies: dict[str, dict[str, datetime]] = {}
    beside: list[str] = []
    for uri, modified in files.list_modified(f"{place}/metadata"):
        copy = find_copy(place, uri)
        if copy is not None:
            copies.setdefault(copy, {})[uri] = modified
        elif not get_file_name(uri).startswith("."):
            beside.append(uri)
    begun = {copy: found for copy, found in copies.items() if not {STAGED, PUBLISHING}.isdisjoint(map(get_file_name, found))}
    return [UnfinishedCopy(found, dict(files.list_modified(copy_folders(place, copy)[0])), beside) for copy, found in begun.items()]


def list_partial_files(files: CopyFiles, place: str, before: datetime) -> list[str]:
    """What lies half written beside the metadata since before that time."""
    folder = f"{place}/metadata"
    names = ((uri, get_file_name(uri), modified) for uri, modified in files.list_modified(folder))
    return [uri for uri, name, at in names if at < before and name.startswith(UNFINISHED[0]) and name.endswith(UNFINISHED[1])]


def get_file_name(uri: str) -> str:
    """The last part of a URI."""
    return uri.rpartition("/")[2]


def remove(files: CopyFiles, uris: Collection[str]) -> None:
    """Remove objects of a copy; what tells how far it came goes last, so that whoever is killed here is gone on after."""
    marks = {mark: [uri for uri in uris if get_file_name(uri) == mark] for mark in (STAGED, PUBLISHING)}
    files.delete_many([uri for uri in uris if get_file_name(uri) not in marks])
    for found in marks.values():
        files.delete_many(found)

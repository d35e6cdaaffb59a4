"""Small files of tables, read and written by the driver itself: with the keys that Spark has, or those that the catalog gives."""

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyarrow import NativeFile
from pyarrow.fs import FileSelector, FileSystem, FileType, LocalFileSystem, S3FileSystem

from duckicelake.errors import ServiceUnavailable, Unsupported
from duckicelake.pipeline.spark import RestCatalog


@dataclass(frozen=True, slots=True)
class Child:
    """What lies in a folder."""

    name: str
    is_folder: bool


@dataclass(frozen=True, slots=True)
class TableObjects:
    """The files of one store, by URI."""

    files: FileSystem

    def read(self, uri: str) -> bytes:
        """The bytes of an object. Raises: ServiceUnavailable: the store does not give it."""
        try:
            with self.files.open_input_stream(_get_path(uri)) as source:
                return source.read()
        except OSError as error:
            raise ServiceUnavailable(f"cannot read {uri}: {error}") from error

    def open(self, uri: str) -> NativeFile:
        """An object to read parts of. Raises: OSError: the store does not give it"""
        return self.files.open_input_file(_get_path(uri))

    def find_size(self, uri: str) -> int | None:
        """How large an object is, in bytes; None: it is not there. Raises: ServiceUnavailable: the store does not say"""
        try:
            info = self.files.get_file_info(_get_path(uri))
        except OSError as error:
            raise ServiceUnavailable(f"cannot look for {uri}: {error}") from error
        return info.size if info.type == FileType.File else None

    def list_folder(self, uri: str) -> list[Child]:
        """What lies directly in a folder, by name; nothing when it is not there. Raises: ServiceUnavailable: the store does not say."""
        try:
            found = self.files.get_file_info(FileSelector(_get_path(uri).rstrip("/"), allow_not_found=True))
        except OSError as error:
            raise ServiceUnavailable(f"cannot list {uri}: {error}") from error
        return sorted((Child(info.base_name, info.type == FileType.Directory) for info in found), key=lambda child: child.name)

    def list_below(self, uri: str) -> list[tuple[str, int, int | None]]:
        """Every file below a folder, by path, with its size and when it was last written. Raises: as `list_folder`"""
        try:
            found = self.files.get_file_info(FileSelector(_get_path(uri).rstrip("/"), allow_not_found=True, recursive=True))
        except OSError as error:
            raise ServiceUnavailable(f"cannot list {uri}: {error}") from error
        return sorted((info.path, info.size, info.mtime_ns) for info in found if info.type == FileType.File)

    def write(self, uri: str, content: bytes) -> None:
        """Put an object under a name that nobody else uses. Raises: ServiceUnavailable: the store does not take it."""
        path = _get_path(uri)
        try:
            # Only a disk has folders.
            if isinstance(self.files, LocalFileSystem):
                self.files.create_dir(path.rpartition("/")[0])
            with self.files.open_output_stream(path) as sink:
                sink.write(content)
        except OSError as error:
            raise ServiceUnavailable(f"cannot write {uri}: {error}") from error


def open_objects(location: str, catalog: RestCatalog, given: Mapping[str, str]) -> TableObjects:
    """The store of a location; `given` is what the catalog says of it.

    Raises: Unsupported: it is neither S3 nor a folder
    """
    scheme = urlsplit(location).scheme
    if scheme in ("", "file"):
        return TableObjects(LocalFileSystem())
    if not scheme.startswith("s3"):
        raise Unsupported(f"{location} is neither on S3 nor in a folder")
    endpoint = urlsplit(given.get("s3.endpoint") or catalog.s3_endpoint or "")
    return TableObjects(
        S3FileSystem(
            access_key=given.get("s3.access-key-id") or catalog.s3_access_key_id,
            secret_key=given.get("s3.secret-access-key") or catalog.s3_secret_access_key,
            session_token=given.get("s3.session-token"),
            region=given.get("client.region") or catalog.s3_region,
            scheme="http" if endpoint.scheme == "http" else "https",
            endpoint_override=endpoint.netloc or None,
            # one request for a small object, not the three of an upload in parts
            allow_delayed_open=True,  # pyright: ignore[reportCallIssue]  the stubs are of an older release
        )
    )


def _get_path(uri: str) -> str:
    scheme, separator, rest = uri.partition("://")
    if separator:
        return rest
    return scheme.removeprefix("file:")

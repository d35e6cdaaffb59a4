"""Copies of data files of clients whose variants DuckDB or Iceberg's readers would read differently.

Trino does not mark variants in a file's schema, so DuckDB takes them for structs: the copy is the file with another footer. DuckDB's
`iceberg` extension writes NULLs as values, as DuckDB does in its own files: the copy has its variants rewritten.
`commits.prepare` calls this on a worker thread, before the lake's lock: it reads and writes the object store. Files of tables without
variants are not looked into.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from uuid import uuid4

from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.iceberg.manifest import DataFile
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import PrimitiveType
from duckicelake.store.objects import Objects
from duckicelake.store.variants import MAX_REWRITTEN_BYTES, correct_variants, needs_correction
from duckicelake.translate.types import VARIANT

MAX_COPIED_BYTES = 4 * 1024 * 1024 * 1024
"""Bytes of the files of one request that are copied."""


def list_variant_columns(schemas: Iterable[Schema]) -> dict[int, str]:
    """Return the columns that are variants in one of these schemas: names by id."""
    return {item.field_id: item.name for schema in schemas for item in schema.fields if item.type == PrimitiveType(VARIANT)}


@dataclass(slots=True)
class VariantWriter:
    """Copy data files of one request into a location. `copies` has the copy of each file, by the path of the file.

    `columns` are the variants of the table, `written` has the paths of all files that this may have written.
    """

    objects: Objects
    location: str
    columns: Mapping[int, str]
    written: list[str]
    copies: dict[str, DataFile] = field(default_factory=dict[str, DataFile])

    def copy(self, files: Sequence[DataFile]) -> None:
        """Copy the files whose variants need it; a file that is missing or no Parquet file is not copied.

        Raises: BadRequest: the files are too large, or a footer or the variants of one cannot be read
        """
        wanted: list[DataFile] = []

        def look_into(file: DataFile) -> None:
            try:
                if needs_correction(self.objects.open(file.file_path, file.file_size_in_bytes), file.file_size_in_bytes, self.columns):
                    wanted.append(file)
            except (NotFound, Unsupported):
                return
            except BadRequest as error:
                raise BadRequest(f"The footer of the data file {file.file_path!r} cannot be read: {error.message}") from error

        self.objects.each(look_into, [file for file in files if file.file_size_in_bytes > 0])
        if sum(file.file_size_in_bytes for file in wanted) > MAX_COPIED_BYTES:
            raise BadRequest(f"The new data files with variants have more than {MAX_COPIED_BYTES} bytes; commit them in parts.")
        for file in wanted:
            self._copy(file)

    def _copy(self, file: DataFile) -> None:
        path, size_bytes = file.file_path, file.file_size_in_bytes
        if size_bytes > MAX_REWRITTEN_BYTES:
            raise BadRequest(f"Data file {path!r} has variants and more than {MAX_REWRITTEN_BYTES} bytes; write smaller files.")
        try:
            content = self.objects.read_small(path, size_bytes)
            if len(content) != size_bytes:
                raise Unsupported(f"it has {len(content)} bytes, and is said to have {size_bytes}")
            content = correct_variants(content, self.columns)
        except Unsupported as error:
            raise BadRequest(f"The variants of the data file {path!r} cannot be read: {error.message}") from error
        uri = f"{self.location}/data/ducklake-{uuid4()}.parquet"
        self.written.append(uri)
        self.objects.put_new(uri, content)
        self.copies[path] = replace(file, file_path=uri, file_size_in_bytes=len(content), split_offsets=None)

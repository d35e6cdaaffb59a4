"""Code that runs on executors: read rows of files from Postgres, build manifests, write them to the store."""

import gc
import json
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from importlib.metadata import version
from time import process_time
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql

from duckicelake.errors import BadRequest, CatalogError, Damaged, NotFound, PostgresRefused, Unsupported
from duckicelake.iceberg.manifest import AnyFile
from duckicelake.lake.bulk_rows import tune_connection
from duckicelake.lake.read_files import read_column_stats, read_data_files, read_file_notes, read_packed_column_stats
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow
from duckicelake.pipeline.common.reports import explain_postgres
from duckicelake.pipeline.common.rest import RestCatalog
from duckicelake.pipeline.common.storage import StoredFiles, open_objects
from duckicelake.translate.bulk.files import SINGLY_MAX, DataFileBuilder
from duckicelake.translate.bulk.manifests import BuiltManifest, ManifestBuilder
from duckicelake.translate.bulk.recipe import Recipe, parse_plan, parse_recipe
from duckicelake.translate.bulk.submissions import format_submission
from duckicelake.translate.manifests import ManifestPlan
from duckicelake.translate.visibility import FileKey

COLLECT_AFTER = (50_000, 20, 50)
"""As in the server: manifests are many small objects without cycles."""


def import_all(_: object) -> None:
    """Do nothing; to unpickle this function an executor imports all modules that build manifests."""


@dataclass(frozen=True, slots=True)
class LakeLocation:
    """The Postgres of a lake, and the store of its objects."""

    dsn: str = field(repr=False)
    metadata_schema: str
    store: RestCatalog

    def open_postgres(self) -> psycopg.Connection:
        """Return a connection that sees the lake's tables by their names, and changes nothing."""
        conn = psycopg.connect(self.dsn, autocommit=True, connect_timeout=10)
        conn.read_only = True
        tune_connection(conn, sql.SQL("SET search_path TO {}").format(sql.Identifier(self.metadata_schema)))
        return conn


@dataclass(frozen=True, slots=True)
class Task:
    """The task of an executor: where rows and objects are, and what the manifests of a table are made of, as JSON."""

    place: LakeLocation
    recipe: str

    def make_all(self, plans: Iterable[str]) -> Iterator[str]:
        """Yield the result for each manifest after it was written, with its cost. A failure is yielded in its place, as `error`."""
        recipe = parse_recipe(json.loads(self.recipe))
        if recipe.version != version("duckicelake"):
            raise BadRequest(f"An executor has duckicelake {version('duckicelake')}, and the server {recipe.version}: use the same.")
        objects = open_objects(recipe.note.location, self.place.store, {})
        try:
            with looking_rarely_for_cycles(), closing(self.place.open_postgres()) as conn:
                maker = SliceMaker(conn, recipe)
                for text in plans:
                    yield make_one(objects, maker, json.loads(text))
        except psycopg.Error as error:
            yield json.dumps({"digest": "", "error": explain_postgres(error), "kind": "failed"})

    def make_batches(self, batches: Iterable[Any]) -> Iterator[pa.RecordBatch]:
        """Yield the same for Arrow's record batches of one column."""
        for text in self.make_all(plan for batch in batches for plan in batch.column(0).to_pylist()):
            yield pa.RecordBatch.from_pydict({"told": [text]})


def make_one(objects: StoredFiles, maker: "SliceMaker", node: Mapping[str, Any]) -> str:
    """Return the result for one manifest. Raises: psycopg.Error: the connection broke"""
    began = process_time()
    try:
        item = write(objects, node["digest"], maker.make(parse_plan(node)))
    except CatalogError as error:
        is_refused = isinstance(error, Unsupported) and not isinstance(error, (Damaged, PostgresRefused))
        kind = "lost" if isinstance(error, NotFound) else "refused" if is_refused else "failed"
        return json.dumps({"digest": node["digest"], "error": error.message, "kind": kind})
    return json.dumps({**item, "cpu-seconds": process_time() - began})


@contextmanager
def looking_rarely_for_cycles() -> Generator[None]:
    """Inside, Python looks for cycles among its objects rarely."""
    before = gc.get_threshold()
    gc.set_threshold(*COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def write(objects: StoredFiles, digest: str, made: BuiltManifest) -> Mapping[str, Any]:
    """Write a manifest, unless it is there, and return what is offered to the catalog."""
    if objects.find_size(made.uri) != len(made.content):
        objects.write(made.uri, made.content)
    name = made.uri.rpartition("/")[2].removesuffix("-m0.avro")
    return {"digest": digest, "name": name, "told": format_submission(made)}


class SliceMaker:
    """Makes manifests of one table from its rows."""

    def __init__(self, conn: psycopg.Connection, recipe: Recipe) -> None:
        self._conn = conn
        self._table_id = recipe.note.table_id
        self._schemas = recipe.schemas
        self._files = DataFileBuilder(recipe.folder, recipe.schemas, recipe.partitioning)
        self._manifests = ManifestBuilder(recipe.schemas, recipe.partitioning, recipe.note)

    def make(self, plan: ManifestPlan) -> BuiltManifest:
        """Return the manifest of a plan.

        Raises: Unsupported: Iceberg readers cannot read one of its files. NotFound: the lake does not have all of its files any more
        """
        files = self._read_files([entry.key for entry in plan.entries])
        lost = next((entry.key for entry in plan.entries if entry.key not in files), None)
        if lost is not None:
            raise NotFound(f"The lake has no row of the data file {lost} any more: the table has changed meanwhile.")
        return self._manifests.make(plan, [files[entry.key] for entry in plan.entries])

    def _read_files(self, keys: Iterable[FileKey]) -> dict[FileKey, AnyFile]:
        ids = sorted(set(keys))
        notes = read_file_notes(self._conn, ids)
        few: list[DataFileRow] = []
        many: dict[int, list[DataFileRow]] = {}
        for row in read_data_files(self._conn, ids):
            if row.data_file_id in notes:
                few.append(row)
            else:
                many.setdefault(self._schemas.at(row.begin_snapshot).schema_id, []).append(row)
        few += [row for rows in many.values() if len(rows) <= SINGLY_MAX for row in rows]
        files: dict[FileKey, AnyFile] = {}
        for rows in many.values():
            if len(rows) > SINGLY_MAX:
                files |= self._make_many(sorted(rows, key=lambda row: row.data_file_id))
        stats: dict[int, list[ColumnStatsRow]] = {row.data_file_id: [] for row in few}
        for found in read_column_stats(self._conn, self._table_id, list(stats)) if few else ():
            stats[found.data_file_id].append(found)
        for row in few:
            files[row.data_file_id] = self._files.make(row, notes.get(row.data_file_id), stats[row.data_file_id])
        return files

    def _make_many(self, rows: list[DataFileRow]) -> dict[FileKey, AnyFile]:
        ids = [row.data_file_id for row in rows]
        packed = read_packed_column_stats(self._conn, self._table_id, ids)
        return dict(zip(ids, self._files.make_many(rows, packed), strict=True))

"""The job `publish`: the catalog plans the manifests of tables with very many files, Spark's executors write them, the catalog adopts them.

Executors read rows of files from Postgres, build manifests and write them to the store. The driver only reads Postgres, and asks the
catalog over REST for plans and to adopt what was written. A table that fails is reported; the others go on. Its command in `commands.jobs`
runs it on the main thread.
"""

import gc
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version
from threading import Event
from time import process_time
from typing import Any

import psycopg
import pyarrow as pa
from psycopg import sql
from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.utils import is_remote

from duckicelake.errors import (
    BadRequest,
    CatalogError,
    CommitFailed,
    Damaged,
    NoSuchTable,
    NotFound,
    PostgresRefused,
    ServiceUnavailable,
    Unsupported,
)
from duckicelake.iceberg.manifest import AnyFile
from duckicelake.lake.bulk_rows import tune_connection
from duckicelake.lake.read_files import read_column_stats, read_data_files, read_file_notes, read_packed_column_stats
from duckicelake.lake.rows import ColumnStatsRow, DataFileRow
from duckicelake.pipeline.common.failures import FAILURES, explain_failure
from duckicelake.pipeline.common.lake_tables import TableName, check_askable, choose_tables, explain_hidden_table, list_live_tables
from duckicelake.pipeline.common.reports import Progress, Stopwatch, TablesReport, Verdict, explain_postgres, read_versions
from duckicelake.pipeline.common.rest import Rest, RestCatalog, TableIdent, parse_ident
from duckicelake.pipeline.common.spark_connect import check_executors, is_gone
from duckicelake.pipeline.common.spark_session import LazySpark
from duckicelake.pipeline.common.staging import make_run_id
from duckicelake.pipeline.common.storage import StoredFiles, open_objects
from duckicelake.translate.bulk_files import SINGLY_MAX, DataFileBuilder
from duckicelake.translate.bulk_manifests import BuiltManifest, ManifestBuilder, Recipe, format_submission, parse_plan, parse_recipe
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


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """One call of the job. No tables: all of them."""

    tables: tuple[TableIdent, ...] = ()


def read_options(tables: Sequence[str] | None) -> PublishOptions:
    """Return the command's arguments as options. Raises: BadRequest: a name is no table's"""
    return PublishOptions(tuple(map(parse_ident, tables or ())))


@dataclass(frozen=True, slots=True)
class Published:
    """One table: how many manifests were made or are to be made, of how many files, and how many were there.

    `cpu_seconds` are those that executors' code took, Postgres' and Spark's own not counted. `message` says why nothing was made.
    """

    table: str
    verdict: Verdict
    manifests: int = 0
    files: int = 0
    bytes: int = 0
    there: int = 0
    attempts: int = 0
    cpu_seconds: float = 0.0
    message: str = ""

    def describe(self) -> str:
        """Return the table in a line."""
        if self.message:
            return f"{self.table}: {self.verdict}: {self.message}"
        there = f", {self.there} were there" if self.there else ""
        what = "no large manifest to make" if self.verdict is Verdict.nothing else f"{self.manifests} manifests of {self.files} files"
        return f"{self.table}: {self.verdict}: {what}{there}"


class PublishReport(TablesReport[Published]):
    """One run."""

    __slots__ = ()
    job = "publish"


ATTEMPTS = 3
SLICES_PER_CORE = 3
"""What one slice made is looked at while others are made."""
AT_ONCE = 2
"""So many slices for each core are Spark's at a time."""
LARGE = 50_000
"""So many files take the catalog long enough to plan."""
SECONDS_TO_ANSWER = 3600.0
"""The catalog reads a row of every file when it plans, and when it takes manifests over."""


@dataclass(frozen=True, slots=True)
class PublishJobContext:
    """The context of a run. Spark is opened when there is something for it to make."""

    connect: Callable[[], Rest]
    place: LakeLocation
    open_spark: Callable[[], AbstractContextManager[SparkSession]]
    progress: Progress


@dataclass(frozen=True, slots=True)
class PublishPlan:
    """The catalog's plan for a table, its manifests by digest."""

    answer: Mapping[str, Any]
    manifests: Mapping[str, Mapping[str, Any]]

    @property
    def files(self) -> int:
        """Return how many entries all manifests have."""
        return sum(count_entries(plan) for plan in self.manifests.values())


def publish(context: PublishJobContext, options: PublishOptions, *, dry_run: bool = False) -> PublishReport:
    """Make the large manifests of the tables that were asked for, or say which ones there are to make.

    Raises: CatalogError, psycopg.Error: it cannot even be begun
    """
    watch, now = Stopwatch(context.progress), datetime.now(UTC)
    told = replace(context, progress=watch.start_step)
    told.progress("look at the catalog")
    context.connect()
    with closing(context.place.open_postgres()) as conn:
        names = choose_tables(list_live_tables(conn), options.tables)
    with closing(LazySpark(context.open_spark)) as spark:
        publisher = TablePublisher(told, spark, is_named=bool(options.tables), dry_run=dry_run)
        found = [one for name in names for one in publisher.publish_table(name)]
    return PublishReport(make_run_id(now), now.isoformat(timespec="seconds"), tuple(found), watch.read(), read_versions())


@dataclass(frozen=True, slots=True)
class TablePublisher:
    """One run. `is_named`: of tables that were asked for. `made` are manifests of the present table that were written, by
    digest.
    """

    context: PublishJobContext
    spark: LazySpark
    is_named: bool
    dry_run: bool
    made: dict[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])

    def publish_table(self, name: TableName) -> Iterator[Published]:
        """Make what there is to make of one table; none when it was dropped meanwhile. What fails is said in its place."""
        self.made.clear()
        ident = name.ident
        try:
            yield self._publish(name)
        except NoSuchTable as error:
            yield from self._report_hidden(name, error.message)
        except Unsupported as error:
            yield Published(str(ident), Verdict.skipped, message=error.message)
        except FAILURES as error:
            if is_gone(error):
                self.spark.close()
            yield Published(str(ident), Verdict.failed, message=explain_failure(error, self.context.connect))

    def _report_hidden(self, name: TableName, said: str) -> Iterator[Published]:
        message = explain_hidden_table(self.context.place.open_postgres, self.context.connect, name, said)
        if message:
            yield Published(str(name.ident), Verdict.failed if self.is_named else Verdict.skipped, message=message)

    def _publish(self, name: TableName) -> Published:
        ident = name.ident
        check_askable(name)
        for attempt in range(1, ATTEMPTS + 1):
            plan = self._plan(name, is_first=attempt == 1)
            told = Published(str(ident), Verdict.planned, len(plan.manifests), plan.files, there=plan.answer["adopted"], attempts=attempt)
            if plan.answer["obstacle"]:
                return Published(str(ident), Verdict.skipped, message=f"{plan.answer['obstacle']}: it is left to the server")
            if not plan.manifests:
                return replace(told, verdict=Verdict.nothing)
            if self.dry_run:
                return told
            try:
                self._make(ident, plan)
                self._adopt(ident, plan)
            except CommitFailed:
                if attempt == ATTEMPTS:
                    raise
            else:
                made = [self.made[digest] for digest in plan.manifests]
                size_bytes, spent = sum(item["told"]["length"] for item in made), sum(item["cpu-seconds"] for item in made)
                return replace(told, verdict=Verdict.done, bytes=size_bytes, cpu_seconds=round(spent, 3))
        raise AssertionError("unreachable")

    def _plan(self, name: TableName, *, is_first: bool) -> PublishPlan:
        self.context.progress(f"plan {name.ident}")
        with ThreadPoolExecutor(1) as beside:
            planning = beside.submit(self._ask, "GET", name.ident)
            if is_first and not self.dry_run and is_new_and_large(self.context.place, name.table_id):
                # A failure of Spark is reported later, when there is something to write.
                with suppress(*FAILURES):
                    get_ready(self.spark.get())
            answer = planning.result()
        return PublishPlan(answer, {item["digest"]: item for item in answer["manifests"]})

    def _make(self, ident: TableIdent, plan: PublishPlan) -> None:
        """Have executors make what was not made by an earlier attempt.

        Raises: CommitFailed: the table is not as it was planned any more. Unsupported, ServiceUnavailable: what an executor says
        """
        missing = [json.dumps(item) for digest, item in plan.manifests.items() if digest not in self.made]
        if not missing:
            return
        files = sum(count_entries(item) for digest, item in plan.manifests.items() if digest not in self.made)
        self.context.progress(f"make {len(missing)} manifests of {files} files of {ident}")
        task = Task(self.context.place, json.dumps(plan.answer["recipe"]))
        with closing(give_out(self.spark.get(), task, missing)) as coming:
            for texts in coming:
                told: list[Mapping[str, Any]] = [json.loads(text) for text in texts]
                some = [item for item in told if "error" not in item]
                self.made.update({item["digest"]: item for item in some})
                for wrong in (item for item in told if "error" in item):
                    raise _ERRORS[wrong["kind"]](wrong["error"])
                if some and any(digest not in self.made for digest in plan.manifests):
                    # A catalog that does not answer now is asked once more when all manifests are written.
                    with suppress(ServiceUnavailable):
                        self._offer(ident, plan, some, is_all=False)

    def _adopt(self, ident: TableIdent, plan: PublishPlan) -> None:
        self.context.progress(f"hand {len(plan.manifests)} manifests of {ident} over")
        self._offer(ident, plan, [self.made[digest] for digest in plan.manifests], is_all=True)

    def _offer(self, ident: TableIdent, plan: PublishPlan, manifests: Sequence[Mapping[str, Any]], *, is_all: bool) -> None:
        """Have the catalog take everything over, or look at a part of it, which it need not do again then if it remembers the plan."""
        body = {name: plan.answer[name] for name in ("lake-snapshot-id", "change-id")}
        body |= {"version": plan.answer["recipe"]["version"], "manifests": manifests, "more-to-come": not is_all}
        self._ask("POST", ident, body)

    def _ask(self, method: str, ident: TableIdent, body: Any = None) -> Any:
        rest = self.context.connect()
        return rest.manage(method, f"{rest.locate(ident)}/manifests", body, SECONDS_TO_ANSWER)


SELECT_IS_NEW_AND_LARGE = """
SELECT count(*) = %(large)s AND NOT EXISTS (SELECT FROM iceberg_manifest WHERE table_id = %(table_id)s)
  FROM (SELECT FROM ducklake_data_file WHERE table_id = %(table_id)s LIMIT %(large)s) f
"""


def is_new_and_large(place: LakeLocation, table_id: int) -> bool:
    """Return True if there is surely much to make of a table, so that executors may get ready while the catalog plans."""
    # Not one connection for all: executors may work for long between two tables.
    with closing(place.open_postgres()) as conn:
        row = conn.execute(SELECT_IS_NEW_AND_LARGE, {"table_id": table_id, "large": LARGE}).fetchone()
    return row is not None and bool(row[0])


def get_ready(spark: SparkSession) -> None:
    """Have executors import what makes manifests. Raises: what Spark raises"""
    if not is_remote():
        cores = spark.sparkContext.defaultParallelism
        spark.sparkContext.parallelize(range(cores), cores).foreach(import_all)


def give_out(spark: SparkSession, task: Task, plans: Sequence[str]) -> Generator[Sequence[str]]:
    """Yield the results of executors for each manifest, slice by slice as they come; after it is closed, no further slice begins.

    Raises: what Spark raises; BadRequest: executors of Spark Connect lack our functions
    """
    if not is_remote():
        yield from _give_out_slices(spark.sparkContext, task, plans)
        return
    check_executors(spark)
    # Rows that Spark makes lie in as many parts as it has cores.
    cores = spark.range(_MANY).select(F.spark_partition_id()).distinct().count()
    given = spark.createDataFrame([(plan,) for plan in plans], "plan string").repartition(min(len(plans), cores * AT_ONCE))
    yield [row["told"] for row in given.mapInArrow(task.make_batches, "told string").collect()]


def _give_out_slices(context: SparkContext, task: Task, plans: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the results of each slice, which is a Spark job of its own. No slice is begun after one has failed."""
    count = min(len(plans), context.defaultParallelism * SLICES_PER_CORE)
    slices = [plans[len(plans) * i // count : len(plans) * (i + 1) // count] for i in range(count)]
    is_over = Event()

    def make(part: Sequence[str]) -> Sequence[str]:
        try:
            return () if is_over.is_set() else context.parallelize(part, 1).mapPartitions(task.make_all).collect()
        except BaseException:
            is_over.set()
            raise

    with ThreadPoolExecutor(min(count, context.defaultParallelism * AT_ONCE)) as pool:
        try:
            for made in as_completed([pool.submit(make, part) for part in slices]):
                yield made.result()
        finally:
            is_over.set()


_MANY = 100_000
_ERRORS = {"lost": CommitFailed, "refused": Unsupported, "failed": ServiceUnavailable}


def count_entries(plan: Mapping[str, Any]) -> int:
    """Return how many files a planned manifest has."""
    return sum(run[0] for run in plan["runs"])

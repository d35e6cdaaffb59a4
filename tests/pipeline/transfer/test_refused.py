"""What is refused, or decided, before the first table: databases, addresses, folders, answers of other catalogs."""

import json
import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from duckicelake.commands.jobs.transfer import build_folder_uri
from duckicelake.errors import BadRequest, CommitStateUnknown, ServiceUnavailable
from duckicelake.iceberg.partition import UNSORTED, PartitionSpec
from duckicelake.iceberg.requests.bodies import CreateTable
from duckicelake.iceberg.schema import Schema
from duckicelake.iceberg.types import NestedField, PrimitiveType
from duckicelake.pipeline.common.rest import Rest, RestCatalog, TableIdent
from duckicelake.pipeline.common.spark_session import LazySpark
from duckicelake.pipeline.transfer.catalogs import Catalog, Entry, LazyScratchCatalog
from duckicelake.pipeline.transfer.copies import Store, describe_new, encode_published
from duckicelake.pipeline.transfer.job import TransferContext, transfer
from duckicelake.pipeline.transfer.options import Form, TransferMode, TransferOptions
from duckicelake.pipeline.transfer.parquet_folders import find_partitions
from duckicelake.pipeline.transfer.rest import RestSide, read_keys
from duckicelake.pipeline.transfer.serverless import CREATE_TABLES, HAS_TABLES_SQLITE, Database, HadoopWarehouse, JdbcCatalog, open_database
from duckicelake.store.objects import StoreSettings, open_objects

ASKED = CreateTable("t", Schema(0, (NestedField(1, "id", PrimitiveType("int"), required=False),)), PartitionSpec(0, ()), UNSORTED, None, {})
STORE = Store(RestCatalog("", ""), {}, lambda _, __: True)


def open_jdbc(path: Path, name: str | None = None, warehouse: str | None = "/w") -> JdbcCatalog:
    """A catalog on SQLite."""
    return JdbcCatalog(open_database(f"sqlite:///{path}", {}), STORE, name, warehouse)


def test_an_export_knows_its_catalogs_name_before_it_begins(tmp_path: Path) -> None:
    """The only name there is, or the one that is given; and where files go."""
    path = tmp_path / "c.db"
    with closing(sqlite3.connect(path)) as conn:
        with pytest.raises(BadRequest, match="catalog-name=NAME: it has no tables yet"):
            open_jdbc(path).settle()
        with pytest.raises(BadRequest, match="say where new tables go"):
            open_jdbc(path, "one", None).settle()
        assert open_jdbc(path, "one").settle().catalog_name == "one"
        conn.execute(CREATE_TABLES)
        conn.execute("INSERT INTO iceberg_tables VALUES ('two', 'a', 't', NULL, NULL, 'TABLE')")
        conn.commit()
        assert open_jdbc(path).settle().catalog_name == "two"


def test_a_catalogs_tables_are_made_where_they_are_missing_alone(tmp_path: Path) -> None:
    """Who may write rows may not make tables everywhere."""
    path = tmp_path / "c.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(CREATE_TABLES)

    def connect() -> sqlite3.Connection:
        conn = sqlite3.connect(path)
        refused = (sqlite3.SQLITE_CREATE_TABLE,)
        conn.set_authorizer(lambda action, *_: sqlite3.SQLITE_DENY if action in refused else sqlite3.SQLITE_OK)
        return conn

    catalog = JdbcCatalog(Database("c", "?", HAS_TABLES_SQLITE, connect), STORE, "one", "/w")
    prepared = catalog.prepare(TableIdent(("a",), "t"), ASKED)
    catalog.publish(prepared, prepared.metadata)
    assert [entry.ident for entry in catalog.list_entries()] == [TableIdent(("a",), "t")]


def test_any_name_of_a_file_is_a_database(tmp_path: Path) -> None:
    """Letters that a URI has a meaning for are of the path, but for the fragment, which nothing here has."""
    path = tmp_path / "a?mode=memory#%41.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(CREATE_TABLES)
        conn.commit()
    database = open_database(f"sqlite:///{tmp_path}/a%3Fmode=memory%23%2541.db", {})
    with database.opening() as conn:
        assert database.ask(conn, database.has_tables).fetchone() == (1,)
    with pytest.raises(BadRequest, match="write %23"):
        open_database(f"sqlite:///{tmp_path}/a#b.db", {})


def test_a_databases_name_is_where_it_is() -> None:
    """And not who asks, or how."""
    assert open_database("postgresql://me@db.example:5433/iceberg?sslmode=require", {}).name == "postgresql://db.example:5433/iceberg"
    assert open_database("sqlite:////c.db", {}).name == "sqlite:////c.db"


@pytest.mark.parametrize(
    ("place", "folder"),
    [
        pytest.param("../x", "x", id="relative"),
        pytest.param("../a/./../x/", "x", id="back and forth"),
        pytest.param("file:{here}/../x", "x", id="file"),
    ],
)
def test_folders_are_whole_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, folder: str) -> None:
    """A store takes `..` for a name like any other."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    assert build_folder_uri(place.format(here=here)) == str(tmp_path / folder)
    assert build_folder_uri("s3://bucket/a/../b/") == "s3://bucket/a/../b"


@pytest.mark.parametrize(
    ("paths", "columns"),
    [
        pytest.param(["a.parquet", "b.parquet"], [], id="none"),
        pytest.param(["day=1/part=2/a", "day=2/part=3/a"], ["day", "part"], id="two levels"),
        pytest.param(["_day=1/a", "_SUCCESS", "_day=1/.a.crc", "_temporary/0/b", "_day=2/b._COPYING_"], ["_day"], id="hidden ones"),
    ],
)
def test_partitions_are_in_the_names_of_folders(paths: list[str], columns: list[str]) -> None:
    """Outermost first; what Spark does not look at counts for nothing."""
    assert find_partitions("/t", paths) == columns


@pytest.mark.parametrize(
    ("paths", "stray"),
    [
        pytest.param(["a.parquet", "sub/b.parquet"], "sub/b.parquet", id="a folder beside files"),
        pytest.param(["day=1/x.parquet", "y.parquet"], "y.parquet", id="a file beside partitions"),
        pytest.param(["day=1/x.parquet", "day=2/part=1/y.parquet"], "day=1/x.parquet", id="levels are missing"),
        pytest.param(["day=1/x.parquet", "part=1/y.parquet"], "part=1/y.parquet", id="another column"),
        pytest.param(["day=1/sub/x.parquet"], "day=1/sub/x.parquet", id="a folder in a partition"),
        pytest.param(["sub/day=1/x.parquet"], "sub/day=1/x.parquet", id="a partition in a folder"),
    ],
)
def test_files_that_spark_would_pass_over_are_refused(paths: list[str], stray: str) -> None:
    """A table with rows missing is none."""
    with pytest.raises(BadRequest, match=f"^/t/{stray} lies"):
        find_partitions("/t", paths)


def plan(source: Catalog, target: Catalog, form: Form, mode: TransferMode = TransferMode.copy) -> list[tuple[str, str]]:
    """What a run would bring, and what it says of each."""
    bench, told = LazyScratchCatalog("run", LazySpark(nullcontext[Any])), list[str]()
    desk = TransferContext("import", source, target, bench, told.append, lambda _: open_objects(StoreSettings(None, "", None, None)))
    report = transfer(desk, TransferOptions("", form, mode=mode), dry_run=True)
    assert told[1:] == [f"plan {one.subject}" for one in report.moved]
    return [(one.subject, one.message) for one in report.moved]


def test_one_tables_failure_stops_no_other_one(tmp_path: Path) -> None:
    """Whatever it is: what cannot be taken apart here is the place of one."""
    path = tmp_path / "c.db"
    with closing(sqlite3.connect(path)) as conn:
        conn.execute(CREATE_TABLES)
        for name, place in (("odd", "s3://[x"), ("a", None), ("z", None)):
            conn.execute("INSERT INTO iceberg_tables VALUES ('one', 'ns', ?, ?, NULL, 'TABLE')", [name, place])
        conn.commit()
    assert plan(open_jdbc(path), HadoopWarehouse(str(tmp_path), STORE), Form.jdbc) == [
        ("ns.a", "the row of ns.a names no metadata file"),
        ("ns.odd", "ValueError: Invalid IPv6 URL"),
        ("ns.z", "the row of ns.z names no metadata file"),
    ]


@contextmanager
def answering(answers: dict[str, Any]) -> Generator[Rest]:
    """A catalog that answers so by path, whatever sense that makes, and knows no other; a text is sent as it is."""

    class Catalog(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            answer = answers.get(path, {"error": {"message": "none", "type": "NoSuchTableException", "code": 404}})
            body = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
            self.send_response(200 if path in answers else 404)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Catalog) as running:
        thread = Thread(target=running.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield Rest(f"http://127.0.0.1:{running.server_port}", RestCatalog("", ""))
        finally:
            running.shutdown()
            thread.join()


def test_a_plan_refuses_a_name_that_the_target_cannot_hold(tmp_path: Path) -> None:
    """As the run would: a JDBC catalog writes the names of a namespace with dots between them."""
    for namespace in ("a", "a.b"):
        folder = tmp_path / "w" / namespace / "t" / "metadata"
        folder.mkdir(parents=True)
        (folder / "v1.metadata.json").write_bytes(encode_published(describe_new(ASKED, str(folder.parent))))
    (tmp_path / "c.db").touch()
    found = plan(HadoopWarehouse(str(tmp_path / "w"), STORE), open_jdbc(tmp_path / "c.db", "one"), Form.hadoop)
    assert found == [
        ("a.t", ""),
        ('"a.b".t', f"a JDBC catalog cannot tell the dot in a name of {found[1][0]} from one between names: rename it"),
    ]


@pytest.mark.parametrize("place", [pytest.param(None, id="none"), pytest.param("s3://b/t/v1.json", id="one")])
def test_a_plan_refuses_to_register_what_has_no_metadata_file(place: str | None) -> None:
    """As the run would: there are catalogs that keep a table's metadata for themselves."""
    table = {"metadata": json.loads(encode_published(describe_new(ASKED, "s3://b/t"))), "metadata-location": place}
    answers = {"/namespaces": {"namespaces": [["a"]]}, "/namespaces/a/tables": {"identifiers": [{"namespace": ["a"], "name": "t"}]}}
    with answering(answers | {"/namespaces/a/tables/t": table}) as theirs, answering({}) as ours:
        sides = [RestSide(name, lambda rest=rest: rest, STORE, {}) for name, rest in (("theirs", theirs), ("ours", ours))]
        found = plan(*sides, Form.rest, TransferMode.register)
    assert found == [("a.t", "" if place else "its catalog does not say where its metadata file is: --mode copy")]


@pytest.mark.parametrize(
    "answer",
    [pytest.param({}, id="no metadata"), pytest.param([], id="a list"), pytest.param("", id="nothing"), pytest.param(1, id="a number")],
)
def test_an_answer_of_another_shape_is_told(answer: Any) -> None:
    """It is the other catalog's fault, in a sentence."""
    with answering({"/namespaces/a/tables/t": answer, "/namespaces/a/views/t": answer}) as rest:
        side = RestSide("other", lambda: rest, STORE, {})
        for ask in (side.load, side.load_view):
            with pytest.raises(BadRequest, match="answer"):
                ask(Entry(TableIdent(("a",), "t")))


def test_an_answer_without_json_leaves_a_commit_unknown() -> None:
    """Something between, a page to log in say, tells nothing of what the catalog did."""
    with answering({"/config": "<html>", "/transactions/commit": "<html>"}) as rest:
        with pytest.raises(ServiceUnavailable, match="no JSON"):
            rest.ask("GET", "config")
        with pytest.raises(CommitStateUnknown, match="no JSON"):
            rest.commit([])


def test_keys_are_those_of_the_answer() -> None:
    """How the catalog renews them is for its own clients: a copy is written without it."""
    given = {"s3.access-key-id": "a", "client.region": "r", "token": "t"}
    more = {"client.refresh-credentials-enabled": "true", "client.refresh-credentials-endpoint": "v1/credentials"}
    lent = [{"prefix": "s3://b", "config": {"s3.session-token": "s"} | more}]
    assert read_keys({"config": given | more, "storage-credentials": lent}) == {
        "s3.access-key-id": "a",
        "client.region": "r",
        "s3.session-token": "s",
    }
    with pytest.raises(BadRequest, match="answer"):
        read_keys({"storage-credentials": [{"prefix": "s3://b"}]})

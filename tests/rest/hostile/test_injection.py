"""Texts that would be statements, were they put into one: values come back as they went in, or are refused, and nothing else happens."""

import json
import re
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import pytest
from duckdb import DuckDBPyConnection

from duckicelake.access.grants import format_name
from duckicelake.embedded.object_store import ROLE_ARN
from tests.rest.auth.ducklake.readers import ask
from tests.rest.auth.principals import Guarded, guard
from tests.rest.auth.rules.managed import Managed
from tests.rest.serving import Answer
from tests.rest.writing.client import data_file, open_client
from tests.support.lakes import make_lake
from tests.support.shared_stack import SharedStack
from tests.support.tiers import whole_after

TOUCHED = "injected-by-a-shell"
DROPS = "DROP TABLE a.victim; DROP TABLE victim; DROP TABLE lake.victim;"
TEXTS = [
    pytest.param(f"x'); {DROPS} --", id="quote"),
    pytest.param(f'x"); {DROPS} --', id="double quote"),
    pytest.param(f"x; {DROPS}", id="semicolon"),
    pytest.param(f"x /* */ -- {DROPS}", id="comments"),
    pytest.param(f"x\\'; {DROPS} \\", id="backslashes"),
    pytest.param(f"x$$; {DROPS} $$ $a$", id="dollars"),
    pytest.param(f"x\0'; {DROPS}", id="nul"),
    pytest.param(f"x\n'; {DROPS}\r\n\t", id="newlines"),
    pytest.param(f"${{jndi:x}} $(touch {TOUCHED}) `touch {TOUCHED}` ; touch {TOUCHED} #", id="shell"),
    pytest.param(f"' $(touch {TOUCHED}) ' \" $(touch {TOUCHED}) \"", id="shell, quoted"),
    pytest.param("%s %(x)s %% {} {0} {x!r} {lake}", id="placeholders"),
    pytest.param("?1 :a $1 @b \\g \\! ls E'\\047'", id="parameters"),
    pytest.param("\u202e'; elbat PORD\u2066\ufeff\u2028", id="right to left"),
    pytest.param("\u02bc \uff07; \u2019 \u037e \uff1b", id="look-alikes"),
    pytest.param("'" * 70_000, id="long"),
]
FIRST = frozenset({"quote", "backslashes", "dollars", "nul"})
"""Those that every run tries."""

TRIED = [pytest.param(*each.values, id=each.id, marks=() if each.id in FIRST else pytest.mark.long) for each in TEXTS]


@dataclass(frozen=True, slots=True)
class Scene:
    """A guarded server with the tables `victim` in DuckLake and in Postgres, DuckDB on the lake, and a principal of the lake."""

    managed: Managed
    duck: DuckDBPyConnection

    @property
    def guarded(self) -> Guarded:
        """The server."""
        return self.managed.guarded

    def ask(self, method: str, path: str, body: Any = None) -> Answer:
        """Ask as who has all rights; what is refused is refused as the client's fault."""
        answer = self.guarded.ask("admin", method, path, body)
        assert answer.status < 500, (path[:200], answer.body[:500])
        return answer

    def select(self, query: str, *values: Any) -> list[Any]:
        """What DuckDB says."""
        return self.duck.execute(query, list(values)).fetchall()

    def check(self) -> None:
        """Both victims are there, and no other table came to Postgres but inlined ones."""
        assert self.select("SELECT count(*) FROM lake.a.victim") == [(3,)]
        conn = self.guarded.lake.psycopg()
        assert conn.execute("SELECT count(*) FROM lake.victim").fetchone() == (1,)


@pytest.fixture(scope="module")
def scene(stack: SharedStack) -> Generator[Scene]:
    """It."""
    with make_lake(stack) as lake, guard(lake, sts_role_arn=ROLE_ARN) as guarded:
        duck = lake.duckdb()
        duck.execute("CREATE TABLE a.victim AS SELECT range AS i FROM range(3)")
        lake.psycopg().execute("CREATE TABLE lake.victim AS SELECT 1 AS i")
        managed = Managed(guarded)
        managed.add("one")
        yield Scene(managed, duck)


def columns(name: str, **more: Any) -> dict[str, Any]:
    """A schema with a column of that name."""
    fields = [
        {"id": 1, "name": name, "type": "string", "required": False, **more},
        {"id": 2, "name": "n", "type": "long", "required": False},
    ]
    return {"type": "struct", "schema-id": 0, "fields": fields}


def to_path(*parts: str) -> str:
    """A path with each part escaped."""
    return "/".join(quote(part, safe="") for part in parts)


def is_kept(answer: Answer) -> bool:
    """Whether it was taken; else it was refused as the client's fault, without a word of Postgres or DuckDB."""
    if answer.status < 300:
        return True
    assert 400 <= answer.status < 500, answer.body[:500]
    assert not re.search(rb"syntax error|psycopg|Parser Error|Traceback", answer.body)
    return False


@pytest.mark.parametrize("text", whole_after(1, TRIED))
def test_names_are_names(scene: Scene, text: str) -> None:
    """Of namespaces on each level, tables, columns, views and refs: listed, loaded, renamed and dropped, by REST and by DuckDB."""
    if is_kept(scene.ask("POST", "namespaces", {"namespace": [text]})):
        assert [text] in scene.ask("GET", "namespaces").json["namespaces"]
        assert scene.select("SELECT count(*) FROM duckdb_schemas() WHERE database_name = 'lake' AND schema_name = ?", text) == [(1,)]
        assert is_kept(scene.ask("POST", to_path("namespaces", text, "tables"), {"name": "t", "schema": columns("s")}))
        assert is_kept(scene.ask("DELETE", to_path("namespaces", text, "tables", "t")))
        assert is_kept(scene.ask("DELETE", to_path("namespaces", text)))
    if is_kept(scene.ask("POST", "namespaces", {"namespace": ["a", text]})):
        assert ["a", text] in scene.ask("GET", "namespaces?parent=a").json["namespaces"]
        assert is_kept(scene.ask("DELETE", to_path("namespaces", f"a\x1f{text}")))
    if is_kept(scene.ask("POST", "namespaces/a/tables", {"name": text, "schema": columns(text[:200])})):
        table = to_path("namespaces", "a", "tables", text)
        assert {"namespace": ["a"], "name": text} in scene.ask("GET", "namespaces/a/tables").json["identifiers"]
        found = (
            "SELECT column_name FROM duckdb_columns() WHERE database_name = 'lake' AND schema_name = 'a' AND table_name = ? ORDER BY ALL"
        )
        assert sorted(scene.select(found, text)) == sorted([(text[:200],), ("n",)])
        assert [field["name"] for field in scene.ask("GET", table).json["metadata"]["schemas"][0]["fields"]] == [text[:200], "n"]
        for source, target in ((text, "moved"), ("moved", text)):
            names = ({"namespace": ["a"], "name": name} for name in (source, target))
            assert is_kept(scene.ask("POST", "tables/rename", dict(zip(("source", "destination"), names, strict=True))))
        read_as_reader(scene, text)
        assert is_kept(scene.ask("DELETE", table + "?purgeRequested=true"))
    version = {"version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}, "default-namespace": ["a"]}
    version |= {"representations": [{"type": "sql", "sql": "SELECT 1 AS i", "dialect": "duckdb"}]}
    if is_kept(scene.ask("POST", "namespaces/a/views", {"name": text, "schema": columns("i"), "view-version": version, "properties": {}})):
        assert scene.select("SELECT count(*) FROM duckdb_views() WHERE database_name = 'lake' AND view_name = ?", text) == [(1,)]
        assert is_kept(scene.ask("DELETE", to_path("namespaces", "a", "views", text)))
    scene.check()


def read_as_reader(scene: Scene, name: str) -> None:
    """Who may read that table alone sees it in DuckDB by that name, from statements that are run as they are given."""
    scene.duck.execute(f'INSERT INTO lake.a."{name.replace(chr(34), chr(34) * 2)}" VALUES (?, 7)', ["it's $$"])
    on = f"table:{format_name(('a', name))}"
    scene.managed.give("read", on, "one")
    told = ask(scene.guarded, scene.managed.token("one"))
    with told.duckdb() as duck:
        assert duck.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake'").fetchall() == [(name,)]
        rows = duck.execute(f'SELECT * FROM lake.a."{name.replace(chr(34), chr(34) * 2)}"').fetchall()
        assert rows == [("it's $$", 7)]
    scene.managed.take("read", on, "one")


@pytest.mark.parametrize("text", whole_after(1, TRIED))
def test_values_are_values(scene: Scene, text: str) -> None:
    """Properties and comments of namespaces, tables and columns, defaults, view texts, refs and summaries come back as they went in."""
    path = "namespaces/b/tables/valued"
    scene.ask("DELETE", path)
    if is_kept(scene.ask("POST", "namespaces/b/properties", {"updates": {text[:900]: text, "comment": text}})):
        told = scene.ask("GET", "namespaces/b").json["properties"]
        assert (told[text[:900]], told["comment"]) == (text, text)
    properties = {text[:900]: text, "comment": text, "format-version": "3"}
    fields = columns("s", doc=text, **{"initial-default": text, "write-default": text})
    if is_kept(scene.ask("POST", "namespaces/b/tables", {"name": "valued", "schema": fields, "properties": properties})):
        metadata = scene.ask("GET", path).json["metadata"]
        [field, _] = metadata["schemas"][0]["fields"]
        assert (field["doc"], field["write-default"]) == (text, text)
        assert (metadata["properties"][text[:900]], metadata["properties"]["comment"]) == (text, text)
        assert scene.select("SELECT comment FROM duckdb_tables() WHERE database_name = 'lake' AND table_name = 'valued'") == [(text,)]
        assert scene.select("SELECT comment FROM duckdb_columns() WHERE table_name = 'valued' AND column_name = 's'") == [(text,)]
        scene.duck.execute("INSERT INTO lake.b.valued (n) VALUES (7)")
        assert scene.select("SELECT s FROM lake.b.valued") == [(text,)]
        assert scene.select("SELECT count(*) FROM lake.b.valued WHERE s = ?", text) == [(1,)]
        snapshot_id = scene.ask("GET", path).json["metadata"]["current-snapshot-id"]
        tag = {"action": "set-snapshot-ref", "ref-name": text, "type": "tag", "snapshot-id": snapshot_id}
        if is_kept(scene.ask("POST", path, {"requirements": [], "updates": [tag]})):
            assert text in scene.ask("GET", path).json["metadata"]["refs"]
        assert is_kept(
            scene.ask("POST", path, {"requirements": [], "updates": [{"action": "remove-properties", "removals": [text[:900]]}]})
        )
    for sql in (text, f"SELECT '{text.replace(chr(39), chr(39) * 2)}' AS i"):
        view = to_view(sql)
        if is_kept(scene.ask("POST", "namespaces/b/views", view)):
            told = scene.ask("GET", "namespaces/b/views/seen").json["metadata"]["versions"][0]
            assert told["representations"][0]["sql"] == sql
            assert is_kept(scene.ask("DELETE", "namespaces/b/views/seen"))
    scene.check()


def to_view(sql: str) -> dict[str, Any]:
    """The body that makes a view of a text."""
    version = {"version-id": 1, "timestamp-ms": 1, "schema-id": 0, "summary": {}, "default-namespace": ["b"]}
    representations = [{"type": "sql", "sql": sql, "dialect": "duckdb"}]
    return {"name": "seen", "schema": columns("i"), "view-version": {**version, "representations": representations}, "properties": {}}


@pytest.mark.parametrize("text", TRIED)
def test_partition_values_and_summaries_are_values(scene: Scene, text: str) -> None:
    """A data file's partition, bounds and name, and what a client says of its snapshot."""
    path, guarded = "namespaces/b/tables/parted", scene.guarded
    scene.ask("DELETE", path)
    spec = {"spec-id": 0, "fields": [{"source-id": 1, "field-id": 1000, "transform": "identity", "name": "s"}]}
    made = scene.ask("POST", "namespaces/b/tables", {"name": "parted", "schema": columns("s"), "partition-spec": spec}).json["metadata"]
    client, bounds = open_client(guarded.server, guarded.lake), {1: text.encode()[:16]}
    file = data_file(made, "x" if len(text) > 900 or "\0" in text else text, partition=(text,), lower_bounds=bounds, upper_bounds=bounds)
    snapshot = client.add(made, 9_000_000_001, [file])
    snapshot["summary"] |= {text[:900]: text}
    updates = [{"action": "add-snapshot", "snapshot": snapshot}, {"action": "set-snapshot-ref", "ref-name": "main", "type": "branch",
                                                                 "snapshot-id": snapshot["snapshot-id"]}]  # fmt: skip
    if is_kept(scene.ask("POST", path, {"requirements": [], "updates": updates})):
        metadata = scene.ask("GET", path).json["metadata"]
        assert metadata["snapshots"][0]["summary"][text[:900]] == text
        files = scene.select("SELECT data_file FROM ducklake_list_files('lake', 'parted', schema => 'b')")
        assert files == [(file.file_path,)]
    scene.check()


@pytest.mark.parametrize("text", TRIED)
def test_who_is_who_whatever_the_name(scene: Scene, text: str) -> None:
    """Principals, roles and grants of such names are refused, or kept, listed and removed; nobody else's are touched."""
    managed = scene.managed
    before = managed.manage("GET", "principals").json
    for kind, body in (("principals", {"name": text, "has-secret": False}), ("roles", {"name": text})):
        for name in (text, f"acme:{text}"):
            if is_kept(managed.manage("POST", kind, body | {"name": name})):
                listed = json.dumps(managed.manage("GET", kind).json)
                [kept] = [each for each in re.findall(r'"((?:[^"\\]|\\.)*)"', listed) if "acme:" in each or each == json.dumps(name)[1:-1]]
                assert is_kept(managed.manage("DELETE", f"{kind}/{quote(json.loads(chr(34) + kept + chr(34)), safe='')}"))
    for on, to in (
        ("warehouse", text),
        (f"namespace:{text}", "one"),
        (f"table:a.{text}", "one"),
        (text, "one"),
        ("warehouse", f"role:{text}"),
    ):
        assert not is_kept(managed.manage("POST", "grants", {"privileges": ["read"], "on": on, "to": to}))
    assert not is_kept(managed.manage("POST", "grants", {"privileges": [text], "on": "warehouse", "to": "one"}))
    basic = scene.guarded.ask_token({"grant_type": "client_credentials", "scope": text[:900]}, (text[:900], text[:900]))
    assert basic.status in (400, 401)
    assert managed.manage("GET", "principals").json == before
    scene.check()

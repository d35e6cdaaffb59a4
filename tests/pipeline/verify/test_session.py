"""DuckDB's rows as a stream, and what becomes of its errors there."""

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from duckicelake.pipeline.verify.job import Session

FAILS_LATE = "SELECT CASE WHEN i = 400000 THEN error('boo') ELSE i END AS i FROM range(1000000) r(i)"


class Streaming:
    """A session whose streams end by an error, as Arrow tells it."""

    def __init__(self, said: str) -> None:
        self.said, self.is_closed = said, False

    def execute(self, _: str) -> "Streaming":
        return self

    def to_arrow_reader(self, _: int) -> Iterator[Any]:
        raise OSError(self.said)
        yield

    def close(self) -> None:
        self.is_closed = True


def test_an_error_in_the_middle_of_a_stream_is_duckdbs() -> None:
    """Arrow hands it on as one of the operating system, which is what Spark's are taken for when its Java is gone."""
    session = Session(duckdb.connect)
    with pytest.raises(duckdb.Error) as caught:
        list(session.read(FAILS_LATE))
    assert session.explain(caught.value) == "DuckDB: Invalid Input Error: boo"
    assert sum(batch.num_rows for batch in session.read("SELECT * FROM range(100000)")) == 100_000
    session.close()


@pytest.mark.parametrize(
    ("said", "is_closed"), [("INTERNAL Error: it broke", True), ("FATAL Error: so it is", True), ("IO Error: no such file", False)]
)
def test_a_stream_may_break_a_session(said: str, is_closed: bool) -> None:
    """As any other statement may: it is opened anew then."""
    streaming: Any = Streaming(said)
    session = Session(lambda: streaming)
    with pytest.raises(duckdb.Error) as caught:
        list(session.read("SELECT 1"))
    assert session.explain(caught.value) == f"DuckDB: {said}"
    assert (streaming.is_closed, session.opened is None) == (is_closed, is_closed)

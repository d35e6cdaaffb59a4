"""Log lines: plain or JSON, on stderr, from the level up."""

import json
import logging
from collections.abc import Iterator
from typing import Literal

import pytest

from duckicelake.commands.serve import configure_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    """The root logger as it was."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    yield
    root.handlers = handlers
    root.setLevel(level)


def test_json_lines_hold_one_object_each(capsys: pytest.CaptureFixture[str]) -> None:
    """Time in UTC, level, logger, message; a traceback stays inside its line."""
    configure_logging("json", "info")
    logging.getLogger("duckicelake.test").info("table %s", "t\nwo")
    try:
        raise ValueError("broken")
    except ValueError:
        logging.getLogger("duckicelake.test").exception("failed")
    out, err = capsys.readouterr()
    assert out == ""
    first, second = (json.loads(line) for line in err.splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("info", "duckicelake.test", "table t\nwo")
    assert first["time"].endswith("+00:00")
    assert "ValueError: broken" in second["traceback"]


def test_json_lines_hold_the_fields_of_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    """Each under its own name, numbers as numbers."""
    configure_logging("json", "info")
    logging.getLogger("duckicelake.access").info("GET /", extra={"fields": {"method": "GET", "status": 200, "ms": 1.5}})
    line = json.loads(capsys.readouterr().err)
    assert (line["message"], line["method"], line["status"], line["ms"]) == ("GET /", "GET", 200, 1.5)


@pytest.mark.parametrize("log_format", ["plain", "json"])
def test_the_http_server_is_not_called_an_error(capsys: pytest.CaptureFixture[str], log_format: Literal["plain", "json"]) -> None:
    """uvicorn logs its start as `uvicorn.error`."""
    configure_logging(log_format, "info")
    logging.getLogger("uvicorn.error").info("Started server process")
    err = capsys.readouterr().err
    assert "uvicorn" in err
    assert "error" not in err


def test_plain_lines_are_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    """Level and logger stand in the line; what is below the level does not appear."""
    configure_logging("plain", "warning")
    logging.getLogger("duckicelake.test").info("quiet")
    logging.getLogger("duckicelake.test").warning("loud")
    err = capsys.readouterr().err
    assert "WARNING duckicelake.test: loud" in err
    assert "quiet" not in err


def test_chatty_libraries_are_kept_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Even at level debug the object store's client tells only of trouble: it logs headers."""
    configure_logging("plain", "debug")
    logging.getLogger("botocore.auth").debug("Authorization: secret")
    logging.getLogger("duckicelake.test").debug("ours")
    err = capsys.readouterr().err
    assert "ours" in err
    assert "Authorization" not in err

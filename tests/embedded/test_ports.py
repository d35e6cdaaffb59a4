"""Ports: kept while free, replaced when taken, refused by name when somebody insists."""

import socket
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from duckicelake.embedded.home import HIGHEST_PORT, LOWEST_PORT, EmbeddedError, check_free, choose_ports, is_free, open_home


@contextmanager
def listening(port: int = 0) -> Generator[int]:
    """A stranger that listens on a port."""
    with socket.create_server(("127.0.0.1", port)) as server:
        yield server.getsockname()[1]


def test_a_listening_port_is_not_free() -> None:
    """Free means that a server could listen there now."""
    with listening() as port:
        assert not is_free(port)
        with pytest.raises(EmbeddedError, match=rf"Port {port} for the catalog is in use.*--port"):
            check_free(port, "the catalog", "--port")
    assert is_free(port)


def test_ports_stay_the_same_while_they_are_free(tmp_path: Path) -> None:
    """The next start listens where the last one did."""
    home = open_home(tmp_path)
    first = choose_ports(home, ["postgres", "s3"], {})
    assert len(set(first.values())) == 2
    assert all(LOWEST_PORT <= port <= HIGHEST_PORT for port in first.values())
    assert choose_ports(home, ["s3", "postgres"], {}) == first


def test_a_remembered_port_that_is_taken_gives_way(tmp_path: Path) -> None:
    """Nobody insisted on it, so another is chosen and the others stay."""
    home = open_home(tmp_path)
    first = choose_ports(home, ["postgres", "s3"], {})
    with listening(first["s3"]):
        second = choose_ports(home, ["postgres", "s3"], {})
    assert second["s3"] != first["s3"]
    assert second["postgres"] == first["postgres"]


def test_a_configured_port_wins_or_is_refused_by_name(tmp_path: Path) -> None:
    """What somebody insists on is used, or named in the error with its option."""
    home = open_home(tmp_path)
    with listening() as port:
        with pytest.raises(EmbeddedError, match=rf"Port {port} for postgres is in use.*--postgres-port"):
            choose_ports(home, ["postgres"], {"postgres": port})
    assert choose_ports(home, ["postgres"], {"postgres": port}) == {"postgres": port}


def test_names_used_before_are_not_forgotten(tmp_path: Path) -> None:
    """A start without the S3 keeps the S3's port for later."""
    home = open_home(tmp_path)
    first = choose_ports(home, ["postgres", "s3"], {})
    choose_ports(home, ["postgres"], {})
    assert choose_ports(home, ["s3"], {}) == {"s3": first["s3"]}

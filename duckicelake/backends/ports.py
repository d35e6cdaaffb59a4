"""Loopback ports for the stack's servers: the same ones at every start while they are free."""

import secrets
import socket
from collections.abc import Iterable

from duckicelake.backends.home import BackendError, Home, read_json, write_json

LOOPBACK = "127.0.0.1"
LOWEST_PORT, HIGHEST_PORT = 15000, 31999
"""Below the kernel's range for outgoing connections, so that no client takes a remembered port."""
TRIES = 200


def is_free(port: int, host: str = LOOPBACK) -> bool:
    """Say whether a server could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def check_free(port: int, what: str, setting: str, host: str = LOOPBACK) -> None:
    """Refuse a port that somebody else listens on.

    Raises: BackendError: names the port, who wanted it and the setting that moves it
    """
    if not is_free(port, host):
        raise BackendError(f"Port {port} for {what} is in use. Stop what listens there, or choose another with {setting}.")


def choose_ports(home: Home, names: Iterable[str], configured: dict[str, int]) -> dict[str, int]:
    """Return one free port per name: the configured one, else the last one used here, else a fresh one; remembered.

    Raises: BackendError: a configured port is in use, or no free port was found
    """
    remembered: dict[str, int] = read_json(home.ports_path) or {}
    chosen: dict[str, int] = {}
    for name in names:
        port = configured.get(name)
        if port is not None:
            check_free(port, name, f"--{name}-port")
        else:
            port = remembered.get(name)
        if port is None or port in chosen.values() or not is_free(port):
            port = _find_fresh(set(chosen.values()) | set(configured.values()))
        chosen[name] = port
    write_json(home.ports_path, remembered | chosen)
    return chosen


def _find_fresh(taken: set[int]) -> int:
    for _ in range(TRIES):
        port = LOWEST_PORT + secrets.randbelow(HIGHEST_PORT - LOWEST_PORT)
        if port not in taken and is_free(port):
            return port
    raise BackendError(f"No free port found on {LOOPBACK} between {LOWEST_PORT} and {HIGHEST_PORT}.")

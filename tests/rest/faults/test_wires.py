"""The wire that tests cut between a server and what it needs."""

import socket
from threading import Event

from tests.rest.proxy import Wire


def test_a_wire_cut_while_it_dials_lets_nothing_through() -> None:
    """A connection taken before the cut and made after it is broken too: its client would be served from beyond."""
    dialling, cut = Event(), Event()

    def dial() -> socket.socket:
        dialling.set()
        cut.wait()
        return socket.create_connection(target.getsockname())

    with socket.create_server(("127.0.0.1", 0)) as target:
        wire = Wire(dial)
        with socket.create_connection(("127.0.0.1", wire.port), timeout=10) as client:
            dialling.wait()
            wire.cut()
            cut.set()
            assert client.recv(1) == b""
        wire.close()

"""A wire that can be cut, and that can hold what is sent: forwards TCP connections to a real server until told to stop."""

import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from functools import partial
from threading import Lock, Thread


class Wire:
    """Listens on a port of its own and forwards every connection to what `dial` reaches.

    `pass_on` is given what is sent there, and returns when it may go on.
    """

    def __init__(self, dial: Callable[[], socket.socket], pass_on: Callable[[bytes], None] = lambda _: None) -> None:
        self._dial, self._pass_on = dial, pass_on
        self._open: set[socket.socket] = set()
        self._lock = Lock()
        self._whole = True
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        with self._lock:
            self._whole = False
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Forward new connections again."""
        self._whole = True

    def close(self) -> None:
        """Stop for good."""
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                self._connect(here)

    def _connect(self, here: socket.socket) -> None:
        if not self._whole:
            here.close()
            return
        try:
            there = self._dial()
        except OSError:
            here.close()
            return
        with self._lock:
            # Cut while it dialled: what is not among the open ones yet would have been passed over.
            if not self._whole:
                here.close()
                there.close()
                return
            self._open |= {here, there}
        Thread(target=self._forward, args=(here, there, self._pass_on), daemon=True).start()
        Thread(target=self._forward, args=(there, here, lambda _: None), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket, pass_on: Callable[[bytes], None]) -> None:
        with suppress(OSError):
            while chunk := source.recv(65536):
                pass_on(chunk)
                sink.sendall(chunk)
        with self._lock:
            self._open -= {source}
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        source.close()


@contextmanager
def wire_to(host: str, port: int, pass_on: Callable[[bytes], None] = lambda _: None) -> Generator[Wire]:
    """A wire to a server, whole at first."""
    wire = Wire(partial(socket.create_connection, (host, port)), pass_on)
    try:
        yield wire
    finally:
        wire.close()

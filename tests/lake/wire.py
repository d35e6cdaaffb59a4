"""A wire to a server that can be frozen and cut."""

import socket
from collections.abc import Generator
from contextlib import contextmanager, suppress
from threading import Event, Lock, Thread

from psycopg.conninfo import conninfo_to_dict, make_conninfo


class Wire:
    """Listens on a port of its own and forwards every connection to `target`."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._open: set[socket.socket] = set()
        self._lock = Lock()
        self._flowing, self._whole = Event(), Event()
        self._flowing.set()
        self._whole.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Let connections live and nothing pass."""
        self._flowing.clear()

    def thaw(self) -> None:
        """Let everything pass again, what was held up first."""
        self._flowing.set()

    def cut(self) -> None:
        """Break every connection, and refuse new ones."""
        self._whole.clear()
        with self._lock:
            for one in self._open:
                with suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Take new connections again."""
        self._whole.set()

    def close(self) -> None:
        """Stop for good."""
        self.thaw()
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                here, _ = self._listener.accept()
                if not self._whole.is_set():
                    here.close()
                    continue
                there = socket.create_connection(self._target)
                with self._lock:
                    self._open |= {here, there}
                for source, sink in ((here, there), (there, here)):
                    Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while chunk := source.recv(65536):
                self._flowing.wait()
                sink.sendall(chunk)
        with self._lock:
            self._open -= {source}
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        source.close()


@contextmanager
def wire_to(dsn: str) -> Generator[tuple[Wire, str]]:
    """A wire to a Postgres, whole at first, and the connection string that goes through it."""
    known = conninfo_to_dict(dsn)
    wire = Wire((str(known["host"]), int(str(known["port"]))))
    try:
        yield wire, make_conninfo(dsn, port=wire.port)
    finally:
        wire.close()

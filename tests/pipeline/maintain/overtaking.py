"""A way to the catalog on which something happens when a commit comes by, and one to the store on which files wait."""

from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from urllib.parse import urlsplit

from tests.pipeline.maintain.keeper import Keeper
from tests.rest.proxy import wire_to
from tests.rest.serving import Answer, Server

Commit = Callable[[Callable[[], Answer]], Answer]
"""What becomes of a commit, which is sent on by a call of what it is given."""
SECONDS_HELD = 30.0
"""So long a file waits at most; then it passes, and whoever counts on it sees."""
_OF_A_CONNECTION = ("connection", "content-length", "date", "host", "server", "transfer-encoding")


@contextmanager
def meeting_commits(keeper: Keeper, table: str, commit: Commit, *, every: bool = False) -> Generator[Keeper]:
    """The keeper by that way; `commit` meets the first one to a table in `main`, or `every`, and others wait until it has been answered."""
    with opening_way(keeper.checker.served.server, table, commit, every=every) as way:
        served = replace(keeper.checker.served, server=way)
        checker = replace(keeper.checker, served=served, catalog=keeper.checker.spark.add(served.rest_catalog()))
        yield Keeper(checker, keeper.told)


@contextmanager
def opening_way(server: Server, table: str, commit: Commit, *, every: bool = False) -> Generator[Server]:
    """That way, which is asked as the server is."""
    pending, turns = [commit], Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept = {name: text for name, text in self.headers.items() if name.lower() not in _OF_A_CONNECTION}
            is_commit = self.command == "POST" and self.path.endswith(f"/namespaces/main/tables/{table}")
            with turns if is_commit else nullcontext():
                meet = (pending[0] if every else pending.pop()) if is_commit and pending else lambda send: send()
                answer = meet(lambda: server.ask(self.command, self.path, kept, body))
            self.send_response(answer.status)
            for name, text in answer.headers.items():
                if name not in _OF_A_CONNECTION:
                    self.send_header(name, text)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body)

        do_POST = do_HEAD = do_DELETE = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as listening:
        listening.daemon_threads = True
        thread = Thread(target=listening.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield Server(listening.server_address[1])
        finally:
            listening.shutdown()
            thread.join()


@contextmanager
def holding_files(keeper: Keeper, first: int) -> Generator[Keeper]:
    """The keeper by a way to the store on which so many data files pass, and all others until the end are held."""
    endpoint, over, lock, passed = urlsplit(keeper.checker.served.lake.store.endpoint), Event(), Lock(), 0

    def pass_on(chunk: bytes) -> None:
        nonlocal passed
        # A client sends the next request on a connection when it has the answer to the one before.
        if chunk.startswith(b"PUT ") and b".parquet" in chunk[: chunk.index(b"\r\n")]:
            with lock:
                passed += 1
                may_pass = passed <= first
            if not may_pass:
                over.wait(SECONDS_HELD)

    with wire_to(str(endpoint.hostname), int(str(endpoint.port)), pass_on) as wire:
        lake = keeper.checker.served.lake
        served = replace(keeper.checker.served, lake=replace(lake, store=replace(lake.store, endpoint=f"http://127.0.0.1:{wire.port}")))
        checker = replace(keeper.checker, served=served, catalog=keeper.checker.spark.add(served.rest_catalog()))
        try:
            yield Keeper(checker, keeper.told)
        finally:
            over.set()

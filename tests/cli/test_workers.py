"""The workers of a server: one that dies while its parent asks whether it lives is not waited for, and a slow one is not taken for dead."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.support.commands import Server, find_port, serving
from tests.support.shared_stack import ROOT
from tests.support.waiting import wait_for

DEADLOCK_SECONDS = 300

KILL_AND_ASK = """
import os, signal, uvicorn
from duckicelake.commands.serve import Workers

async def app(scope, receive, send): ...

if __name__ == "__main__":
    config = uvicorn.Config(f"{__file__.rsplit('/')[-1][:-3]}:app", port=0, workers=1, timeout_worker_healthcheck=3600, log_config=None)
    workers = Workers(config, sockets=[config.bind_socket()])
    workers.init_processes()
    workers.keep_subprocess_alive()
    [worker] = workers.processes
    os.kill(worker.pid, signal.SIGKILL)
    worker.process.join()
    assert not worker.ping(3600)
    workers.keep_subprocess_alive()
    [replacement] = workers.processes
    assert replacement.pid != worker.pid and replacement.ping(3600)
    workers.terminate_all()
    workers.join_all()
    print("replaced")
"""
"""The worker is dead when it is asked: as if it had died between the look at its process and the question."""


IMPORT_FOR_LONG = """
import os, signal, time, uvicorn
from pathlib import Path
from duckicelake.commands.serve import Workers

MAY_IMPORT = Path(__file__).with_name("may_import")
if __name__ == "__mp_main__":
    while not MAY_IMPORT.exists():
        time.sleep(0.01)

async def app(scope, receive, send): ...

if __name__ == "__main__":
    config = uvicorn.Config(f"{__file__.rsplit('/')[-1][:-3]}:app", port=0, workers=1, timeout_worker_healthcheck=0, log_config=None)
    workers = Workers(config, sockets=[config.bind_socket()])
    workers.init_processes()
    [worker] = workers.processes
    for _ in range(3):
        workers.keep_subprocess_alive()
    assert workers.processes == [worker] and worker.process.is_alive()
    MAY_IMPORT.touch()
    assert worker.parent_conn.poll(3600)
    os.kill(worker.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
    workers.keep_subprocess_alive()
    [replacement] = workers.processes
    assert replacement is not worker and worker.exitcode == -signal.SIGKILL
    replacement.kill()
    replacement.join()
    print("replaced")
"""
"""The worker may take longer for its imports than for any later answer."""


@pytest.mark.whole
def test_a_worker_may_take_long_for_its_first_answer_alone(tmp_path: Path) -> None:
    """On a busy machine all workers do, and to end them makes it busier."""
    script = tmp_path / "import_for_long.py"
    script.write_text(IMPORT_FOR_LONG)
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=DEADLOCK_SECONDS, check=False)
    assert done.stdout.strip() == "replaced", done.stderr


@pytest.mark.whole
def test_a_worker_that_dies_while_it_is_asked_is_replaced_at_once(tmp_path: Path) -> None:
    script = tmp_path / "kill_and_ask.py"
    script.write_text(KILL_AND_ASK)
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=DEADLOCK_SECONDS, check=False)
    assert done.stdout.strip() == "replaced", done.stderr


BUSY, WORKERS = 30, 4
START_SECONDS = 900
STARTED, COMPLETE, READY = "Started server process", "Application startup complete", "DuckIceLake is ready"


@contextmanager
def busy_processes() -> Generator[None]:
    """Keep all cores busy until the end of the block."""
    with ExitStack() as running:
        for _ in range(BUSY):
            process = running.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            running.callback(process.kill)
        yield


@pytest.mark.long
def test_workers_get_ready_on_a_busy_machine(tmp_path: Path) -> None:
    """A limit for a worker's first answer, uvicorn's 5 s or a minute, ends each before it has imported the server, again and again."""
    home, port = tmp_path / "home", find_port()
    with serving(home, port) as first:
        pass
    before = first.log()
    with busy_processes():
        server = Server(home, port, "--workers", str(WORKERS))
        try:
            wait_for(lambda: server.log().removeprefix(before).count(COMPLETE) == WORKERS, "all workers", START_SECONDS)
            wait_for(lambda: READY in server.log().removeprefix(before), "the welcome", START_SECONDS)
            assert server.fetch("/readyz")[0] == 200
        finally:
            server.process.terminate()
            server.process.wait(START_SECONDS)
    log = server.log().removeprefix(before)
    assert log.count(STARTED) == WORKERS, log
    assert log.index(COMPLETE) < log.index(READY), log

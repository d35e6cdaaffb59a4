"""The workers of a server: one that dies while its parent asks whether it lives is not waited for."""

import subprocess
import sys
from pathlib import Path

from tests.support.shared_stack import ROOT

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


def test_a_worker_that_dies_while_it_is_asked_is_replaced_at_once(tmp_path: Path) -> None:
    script = tmp_path / "kill_and_ask.py"
    script.write_text(KILL_AND_ASK)
    done = subprocess.run([sys.executable, script], cwd=ROOT, capture_output=True, text=True, timeout=DEADLOCK_SECONDS, check=False)
    assert done.stdout.strip() == "replaced", done.stderr

"""CPU time and memory of process trees, against processes whose work is known."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from bench.accounting import Meter, find_tree, list_processes, parse_sizes, parse_stat, read_memory, read_peak, reset_peak

BURN = "import time\nwhile time.process_time() < {seconds}: pass\n"
SAY_AND_WAIT = "print('done', flush=True)\ninput()\n"
BURN_MS = 300
MIB = 1024 * 1024


@contextmanager
def running(program: str) -> Generator[subprocess.Popen[str]]:
    """A Python process that has said that it is done and waits for a line."""
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            wait_done(process)
            yield process
        finally:
            process.kill()


def wait_done(process: subprocess.Popen[str]) -> None:
    """Wait until the process says that it is done."""
    assert process.stdout is not None
    assert process.stdout.readline() == "done\n"


def go_on(process: subprocess.Popen[str]) -> None:
    """Send the process the line it waits for, and wait until it is done again."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    wait_done(process)


def test_a_name_with_brackets_and_spaces_is_read_over() -> None:
    """The fields of a stat line count from the last bracket."""
    text = "42 (a) b (c d) S 7 42 42 0 -1 4194304 100 200 0 0 11 22 3 4 20 0 1 0 12345 1000 50"
    stat = parse_stat(text)
    assert (stat.pid, stat.parent, stat.own_ticks, stat.ended_ticks) == (42, 7, 33, 7)


def test_sizes_are_read_in_bytes() -> None:
    """Lines that name no size are passed over."""
    assert parse_sizes("Name:\tpython\nRss:     12 kB\nPss:\t3 kB\nThreads:\t4\n") == {"Rss": 12288, "Pss": 3072}


@pytest.mark.parametrize(
    "work",
    [
        pytest.param(BURN.format(seconds=BURN_MS / 1000 + 0.2), id="itself"),
        pytest.param(
            f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {BURN.format(seconds=BURN_MS / 1000)!r}])\n", id="ended child"
        ),
        pytest.param(
            "import subprocess, sys\n"
            f"child = subprocess.Popen([sys.executable, '-c', {(BURN.format(seconds=BURN_MS / 1000) + SAY_AND_WAIT)!r}],\n"
            "                         stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)\n"
            "child.stdout.readline()\n",
            id="living child",
        ),
    ],
)
def test_work_of_the_whole_tree_counts(work: str) -> None:
    """What a process or any process below it burns is its tree's, and nobody else's."""
    with running(SAY_AND_WAIT + work + SAY_AND_WAIT) as busy, running(SAY_AND_WAIT) as bored:
        meter = Meter({"busy": busy.pid, "bored": bored.pid})
        before = meter.read_cpu_ms()
        go_on(busy)
        after = meter.read_cpu_ms()
        assert BURN_MS * 0.9 <= after["busy"] - before["busy"] <= BURN_MS * 4
        assert after["bored"] - before["bored"] < BURN_MS * 0.1


def test_a_process_that_is_gone_has_no_tree() -> None:
    """A tree that has ended costs nothing more; it is no failure."""
    with running(SAY_AND_WAIT) as process:
        pid = process.pid
    assert Meter({"gone": pid}).read_cpu_ms() == {"gone": 0.0}


def test_a_tree_can_leave_out_another() -> None:
    """What is counted on its own is not counted twice."""
    child = "import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', 'input()'], stdin=subprocess.PIPE)\n"
    with running(child + SAY_AND_WAIT) as process:
        processes = list(list_processes().values())
        whole = find_tree(processes, process.pid)
        [below] = [found.pid for found in whole if found.parent == process.pid]
        assert [found.pid for found in find_tree(processes, process.pid, frozenset({below}))] == [process.pid]


def test_memory_in_use_and_its_peak_are_seen() -> None:
    """What a process holds is its memory, and what it held is its peak, until the peak is reset."""
    with running("held = bytearray(80 * 1024 * 1024)\n" + SAY_AND_WAIT + "del held\n" + SAY_AND_WAIT) as process:
        full = read_memory([process.pid])
        assert full.rss >= full.pss > 80 * MIB
        go_on(process)
        assert read_memory([process.pid]).rss < full.rss - 60 * MIB
        assert read_peak(process.pid) >= full.rss - MIB
        reset_peak(process.pid)
        assert read_peak(process.pid) < full.rss - 60 * MIB

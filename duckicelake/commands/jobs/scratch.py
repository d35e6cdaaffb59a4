"""The folder in which Spark keeps a run's rows on disk, and those of runs that were killed, which nobody else removes."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

PREFIX = "duckicelake-"
LOCK = "running.lock"


@contextmanager
def opening_scratch() -> Generator[Path]:
    """A folder of the run's own; what cannot be removed of it changes nothing of what was done."""
    remove_dead()
    with tempfile.TemporaryDirectory(prefix=PREFIX, ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with (folder / f"{LOCK}.new").open("w") as lock:
            # Where nothing can be locked nothing is removed either; under its name it is held from the first.
            with suppress(OSError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.rename(lock.name, folder / LOCK)
            yield folder


def remove_dead() -> None:
    """Remove this user's folders whose run is gone."""
    for lock in Path(tempfile.gettempdir()).glob(f"{PREFIX}*/{LOCK}"):
        with suppress(OSError):
            _remove_if_dead(lock)


def _remove_if_dead(lock: Path) -> None:
    folder = lock.parent
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        return
    held = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(held)

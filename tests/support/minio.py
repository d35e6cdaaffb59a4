"""A MinIO for tests: built from its source by `.ci/install`, or any on the PATH."""

import os
import re
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from duckicelake.embedded.object_store import StoreAccess
from duckicelake.embedded.stack import StackOptions, start_stack
from tests.support.shared_stack import ROOT

PINNED = re.compile(r"^minio_version=(\S+)$", re.MULTILINE)


class MinioMissing(RuntimeError):
    """There is no MinIO on this machine; the message says how to get one."""


def find_minio() -> Path:
    """The program: what `.ci/install` has built, which is on no PATH since `serve` would take it, else one on the PATH.

    Raises: MinioMissing
    """
    pinned = PINNED.search((ROOT / ".ci" / "install").read_text())
    assert pinned is not None
    built = Path.home() / ".cache" / "duckicelake" / f"minio-{pinned[1]}" / "minio"
    found = str(built) if built.exists() else shutil.which("minio")
    if found is None:
        raise MinioMissing("The tests of MinIO need one: run .ci/install --minio, which builds it with Go, or put `minio` on the PATH.")
    return Path(found)


@contextmanager
def run_minio(home: Path) -> Generator[StoreAccess]:
    """A MinIO with a bucket, until the end of the block."""
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{find_minio().parent}{os.pathsep}{before}"
    try:
        running = start_stack(home, StackOptions(postgres=False, store="minio"), lambda line: None)
    finally:
        os.environ["PATH"] = before
    try:
        assert running.store is not None
        yield running.store
    finally:
        running.stop()

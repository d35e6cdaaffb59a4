"""A MinIO found on the PATH, run as the embedded S3 and STS."""

import shutil
import signal
from pathlib import Path

from duckicelake.backends.buckets import StoreAccess, ask_store
from duckicelake.backends.home import BackendError, Home, Keys
from duckicelake.backends.keeper import Job
from duckicelake.backends.ports import LOOPBACK
from duckicelake.backends.processes import Command

STOP_SECONDS = 20.0
QUIET = {"MINIO_UPDATE": "off", "MINIO_BROWSER": "off", "MINIO_CALLHOME_ENABLE": "off"}
"""It calls nobody and shows no console."""


def list_port_names() -> list[str]:
    """Return the names of the ports it listens on."""
    return ["s3"]


def find_minio() -> Path | None:
    """Return the program `minio` on the PATH, or None."""
    found = shutil.which("minio")
    return None if found is None else Path(found)


def plan_minio(home: Home, keys: Keys, ports: dict[str, int]) -> Job:
    """Return how to run it.

    Raises: BackendError: there is no `minio` on the PATH
    """
    program = find_minio()
    if program is None:
        raise BackendError("No program `minio` on the PATH; install it, or use --store seaweedfs.")
    folder = home.make_folder("minio")
    command = Command(
        name="MinIO",
        argv=(str(program), "server", "--quiet", "--address", f"{LOOPBACK}:{ports['s3']}", str(folder)),
        mark=str(folder),
        log_path=home.make_folder("log") / "minio.log",
        pid_path=home.make_folder("run") / "s3.json",
        stop_signal=signal.SIGTERM,
        stop_seconds=STOP_SECONDS,
        environment=QUIET | {"MINIO_ROOT_USER": keys.s3_access_key_id, "MINIO_ROOT_PASSWORD": keys.s3_secret_access_key},
    )
    return Job(command, ask_store(StoreAccess.on_loopback(keys, ports["s3"])))

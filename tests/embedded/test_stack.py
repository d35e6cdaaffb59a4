"""The embedded stack as a whole: private, closed to strangers, alive again after a kill, the same after a restart."""

import json
import os
import shutil
import signal
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import boto3
import psycopg
import pytest
from botocore.exceptions import BotoCoreError, ClientError

from duckicelake.embedded.home import EmbeddedError, HomeInUse, open_home, read_json
from duckicelake.embedded.object_store import StoreAccess, count_threads, list_seaweedfs_ports
from duckicelake.embedded.processes import find_process
from duckicelake.embedded.stack import Stack, StackOptions, resolve_store, start_stack
from tests.support.strangers import ask, knock_with_tls, list_listening
from tests.support.waiting import wait_for

OPTIONS = StackOptions(store="seaweedfs")
KEY = "data/secret.parquet"
CONTENT = b"nobody else may read this"
ASSUME_ROLE = "Action=AssumeRole&Version=2011-06-15&RoleArn=arn:aws:iam::000000000000:role/duckicelake&RoleSessionName=x"


def s3(access: StoreAccess, session: dict[str, str] | None = None) -> Any:
    """Return an S3 client with the root keys, or with those of a session."""
    keys = session or {"AccessKeyId": access.access_key_id, "SecretAccessKey": access.secret_access_key}
    return boto3.client(
        "s3",
        endpoint_url=access.endpoint,
        region_name=access.region,
        aws_access_key_id=keys["AccessKeyId"],
        aws_secret_access_key=keys["SecretAccessKey"],
        aws_session_token=keys.get("SessionToken"),
    )


def pid_of(stack: Stack, name: str) -> int | None:
    """Return the process id of `postgres` or `s3` while it runs."""
    found = read_json(stack.home.path / "run" / f"{name}.json")
    return None if found is None else found["running"]["pid"]


def get_pid(stack: Stack, name: str) -> int:
    """Return the process id of `postgres` or `s3`, which must run."""
    pid = pid_of(stack, name)
    assert pid is not None
    return pid


def ports_of(stack: Stack) -> dict[str, int]:
    """Return the ports the stack listens on, by name."""
    return read_json(stack.home.ports_path) or {}


def count_rows(stack: Stack) -> int | None:
    """Return how many rows the test's table holds, or None while Postgres does not answer."""
    assert stack.postgres is not None
    try:
        with psycopg.connect(stack.postgres.dsn, connect_timeout=5) as conn:
            row = conn.execute("SELECT count(*) FROM kept").fetchone()
    except psycopg.OperationalError:
        return None
    return None if row is None else row[0]


def read_object(stack: Stack) -> bytes | None:
    """Return the test's object, or None while the S3 does not answer."""
    assert stack.store is not None
    try:
        return s3(stack.store).get_object(Bucket="lake", Key=KEY)["Body"].read()
    except (BotoCoreError, ClientError):
        return None


def fill(stack: Stack) -> None:
    """Put one row and one object where a restart must find them."""
    assert stack.postgres is not None
    assert stack.store is not None
    with psycopg.connect(stack.postgres.dsn) as conn:
        conn.execute("CREATE TABLE kept AS SELECT 1 AS i")
    s3(stack.store).put_object(Bucket="lake", Key=KEY, Body=CONTENT)


@pytest.fixture(scope="module")
def reports() -> list[str]:
    """What the module's stack reported."""
    return []


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory, reports: list[str]) -> Iterator[Stack]:
    """A stack of this module's own, with a row and an object in it."""
    started = start_stack(tmp_path_factory.mktemp("home"), OPTIONS, reports.append)
    fill(started)
    yield started
    started.stop()


def test_every_file_with_a_secret_is_private(running: Stack) -> None:
    """The home and the databases are 0700; keys, certificates, settings, ports, pids and logs 0600."""
    home = running.home.path
    assert {stat.S_IMODE((home / name).stat().st_mode) for name in (".", "postgres", "seaweedfs", "seaweedfs.d", "run", "log")} == {0o700}
    files = [path for folder in (".", "seaweedfs.d", "run", "log") for path in (home / folder).iterdir() if path.is_file()]
    assert len(files) > 10
    assert {path.name: oct(stat.S_IMODE(path.stat().st_mode)) for path in files if stat.S_IMODE(path.stat().st_mode) != 0o600} == {}


def test_seaweedfs_leaves_half_of_the_cores_to_others(running: Stack) -> None:
    """With as many threads as there are cores it takes more CPU time for the same objects."""
    environment = Path(f"/proc/{get_pid(running, 's3')}/environ").read_bytes().split(b"\0")
    assert f"GOMAXPROCS={count_threads(len(os.sched_getaffinity(0)))}".encode() in environment
    assert [count_threads(cores) for cores in (1, 2, 3, 8)] == [1, 1, 1, 4]


def test_no_secret_stands_in_a_command_line(running: Stack) -> None:
    """Anyone can read a process's arguments."""
    keys = read_json(running.home.keys_path) or {}
    assert len(keys) == 7
    for name in ("postgres", "s3"):
        arguments = Path(f"/proc/{get_pid(running, name)}/cmdline").read_text()
        assert not [secret for secret in keys.values() if secret in arguments]


def test_the_lakes_role_is_no_superuser(running: Stack) -> None:
    """What clients get can do what it likes with the lake, readers' roles included, and nothing with the machine."""
    assert running.postgres is not None
    with psycopg.connect(running.postgres.dsn) as conn:
        found = conn.execute("SELECT rolsuper, rolcreatedb, rolcreaterole FROM pg_roles WHERE rolname = current_user").fetchone()
        assert found == (False, False, True)
        with pytest.raises(psycopg.errors.InsufficientPrivilege), conn.transaction():
            conn.execute("CREATE ROLE stranger SUPERUSER")
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            conn.execute("SELECT pg_read_file('/etc/passwd')")


def test_postgres_asks_everybody_for_a_password(running: Stack) -> None:
    """No role gets in without one, the superuser included, and passwords are kept as SCRAM."""
    assert running.postgres is not None
    for role in ("postgres", "duckicelake"):
        with pytest.raises(psycopg.OperationalError, match="password"):
            psycopg.connect(host="127.0.0.1", port=ports_of(running)["postgres"], user=role, password="wrong", dbname="lake")
    with psycopg.connect(running.postgres.admin_dsn) as conn:
        kept = conn.execute("SELECT rolpassword FROM pg_authid WHERE rolpassword IS NOT NULL").fetchall()
        rules = conn.execute("SELECT DISTINCT auth_method FROM pg_hba_file_rules").fetchall()
    assert all(password.startswith("SCRAM-SHA-256$") for (password,) in kept)
    assert rules == [("scram-sha-256",)]


def test_postgres_is_durable_and_small(running: Stack) -> None:
    """A commit that was acknowledged survives power loss; the buffers fit a laptop."""
    assert running.postgres is not None
    with psycopg.connect(running.postgres.dsn) as conn:
        settings = dict(conn.execute("SELECT name, setting FROM pg_settings").fetchall())
    assert (settings["fsync"], settings["synchronous_commit"], settings["full_page_writes"]) == ("on", "on", "on")
    assert settings["data_checksums"] == "on"
    assert int(settings["shared_buffers"]) * 8192 <= 64 * 1024 * 1024
    assert settings["lc_messages"] == "C"
    assert settings["server_encoding"] == "UTF8"


def test_the_servers_listen_on_loopback_and_only_on_the_known_ports(running: Stack) -> None:
    """No port that nobody chose, no address that another machine reaches, no unix socket that another user can open."""
    ports = ports_of(running)
    postgres, _ = list_listening(get_pid(running, "postgres"))
    assert postgres == {("127.0.0.1", ports["postgres"])}
    known = {("127.0.0.1", ports[name]) for name in list_seaweedfs_ports()}
    # Not all of them are open when S3 answers.
    wait_for(lambda: list_listening(get_pid(running, "s3"))[0] >= known, "all ports")
    weed, sockets = list_listening(get_pid(running, "s3"))
    assert weed == known
    assert sockets
    for path in (running.home.path / "seaweedfs" / name for name in sockets):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


@pytest.mark.parametrize("name", [name for name in list_seaweedfs_ports() if not name.endswith("grpc")])
def test_a_stranger_gets_nothing_over_http(running: Stack, name: str) -> None:
    """No port gives, takes, lists or deletes an object, or drops a bucket, without keys."""
    port = ports_of(running)[name]
    attempts = [
        ("GET", f"/buckets/lake/{KEY}"),
        ("GET", f"/lake/{KEY}"),
        ("GET", "/buckets/lake/data/?pretty=y"),
        ("GET", "/lake?list-type=2"),
        ("PUT", "/buckets/lake/data/stranger"),
        ("PUT", "/lake/data/stranger"),
        ("POST", "/buckets/lake/data/stranger"),
        ("POST", f"/x?{ASSUME_ROLE}"),
        ("DELETE", f"/buckets/lake/{KEY}"),
        ("DELETE", "/buckets/lake?recursive=true"),
        ("GET", "/col/delete?collection=lake"),
        ("GET", "/dir/assign?collection=lake"),
        ("GET", "/submit"),
        ("POST", "/submit"),
        ("GET", "/vol/grow?count=1"),
        ("GET", "/2,01637037d6"),
    ]
    # The others show a page with their version at their root.
    attempts += [("POST", f"/?{ASSUME_ROLE}")] if name == "s3" else []
    replies = {attempt: ask(port, *attempt) for attempt in attempts}
    assert {attempt: reply for attempt, reply in replies.items() if 200 <= reply.status < 400} == {}
    assert read_object(running) == CONTENT
    assert running.store is not None
    listed = s3(running.store).list_objects_v2(Bucket="lake")["Contents"]
    assert [item["Key"] for item in listed] == [KEY]


@pytest.mark.parametrize("name", [name for name in list_seaweedfs_ports() if name.endswith("grpc")])
def test_a_stranger_gets_nothing_over_grpc(running: Stack, name: str) -> None:
    """The inner ports speak only to holders of our certificate."""
    port, settings = ports_of(running)[name], running.home.path / "seaweedfs.d"
    assert ask(port, "GET", "/").status == 0
    assert knock_with_tls(port, None) == b""
    assert knock_with_tls(port, (settings / "peer.pem", settings / "peer.key")) != b""


def test_a_session_reaches_only_what_its_policy_names(running: Stack) -> None:
    """STS works, and its sessions are narrower than the role."""
    access = running.store
    assert access is not None
    client: Any = boto3.client(
        "sts",
        endpoint_url=access.endpoint,
        region_name=access.region,
        aws_access_key_id=access.access_key_id,
        aws_secret_access_key=access.secret_access_key,
    )
    statement = {"Effect": "Allow", "Action": ["s3:GetObject"], "Resource": ["arn:aws:s3:::lake/data/*"]}
    session = client.assume_role(
        RoleArn=access.role_arn,
        RoleSessionName="reader",
        DurationSeconds=900,
        Policy=json.dumps({"Version": "2012-10-17", "Statement": [statement]}),
    )["Credentials"]
    reader = s3(access, session)
    assert reader.get_object(Bucket="lake", Key=KEY)["Body"].read() == CONTENT
    with pytest.raises(ClientError, match="AccessDenied"):
        reader.get_object(Bucket="lake", Key="iceberg/other")
    with pytest.raises(ClientError, match="AccessDenied"):
        reader.put_object(Bucket="lake", Key=KEY, Body=b"")


def test_a_second_stack_on_one_home_is_refused(running: Stack) -> None:
    """The second is told who runs, and the first does not notice."""
    with pytest.raises(HomeInUse, match=rf"pid {os.getpid()}"):
        start_stack(running.home.path, OPTIONS, lambda line: None)
    assert count_rows(running) == 1


@pytest.mark.whole
def test_a_killed_postgres_comes_back(running: Stack, reports: list[str]) -> None:
    """kill -9 loses nothing that was committed."""
    before = get_pid(running, "postgres")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: pid_of(running, "postgres") not in (None, before), "a new Postgres")
    assert wait_for(lambda: count_rows(running), "an answer of Postgres") == 1
    assert any(line.startswith("Postgres: it ended with status -9") for line in reports)


@pytest.mark.whole
def test_a_killed_s3_comes_back(running: Stack, reports: list[str]) -> None:
    """kill -9 loses no object that was acknowledged."""
    before = get_pid(running, "s3")
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: pid_of(running, "s3") not in (None, before), "a new S3")
    assert wait_for(lambda: read_object(running), "an answer of the S3") == CONTENT
    assert any(line.startswith("SeaweedFS: it ended with status -9") for line in reports)


@pytest.mark.whole
def test_a_restart_finds_everything_even_on_other_ports(tmp_path: Path) -> None:
    """Ports stay when they are free, which other processes may change meanwhile; when they are not, the data is still there."""
    order: list[str] = []
    first = start_stack(tmp_path, OPTIONS, order.append)
    fill(first)
    ports = ports_of(first)
    first.stop()
    assert order[-2:] == ["SeaweedFS is stopped", "Postgres is stopped"]
    assert [find_process(pid) for name in ("postgres", "s3") if (pid := pid_of(first, name)) is not None] == []
    names = {"s3", "seaweedfs-master", "seaweedfs-volume", "seaweedfs-filer"}
    taken = [socket.create_server(("127.0.0.1", ports[name])) for name in names]
    second = start_stack(tmp_path, OPTIONS, lambda line: None)
    try:
        assert count_rows(second) == 1
        assert read_object(second) == CONTENT
        moved = {name for name, port in ports_of(second).items() if port != ports[name]}
        assert names <= moved
        assert moved < ports.keys()
    finally:
        second.stop()
        for server in taken:
            server.close()


def test_a_configured_port_in_use_is_named_before_anything_starts(tmp_path: Path) -> None:
    """Nothing runs after the refusal, and the home is free again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedError, match=rf"Port {port} for s3 is in use.*--s3-port"):
            start_stack(tmp_path, StackOptions(store="seaweedfs", s3_port=port), lambda line: None)
    assert not (tmp_path / "run" / "postgres.json").exists()


@pytest.mark.whole
def test_a_start_that_fails_halfway_leaves_nothing_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Postgres was started before the S3 turned out to be missing; it is gone, and the home is free again."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    reports: list[str] = []
    with pytest.raises(EmbeddedError, match="No program `minio` on the PATH"):
        start_stack(tmp_path, StackOptions(store="minio"), reports.append)
    assert reports[-1] == "Postgres is stopped"
    start_stack(tmp_path, StackOptions(postgres=False, store="none"), reports.append).stop()


def test_auto_prefers_a_minio_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without one it is SeaweedFS; a named store is itself."""
    home = open_home(tmp_path / "home")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert resolve_store("auto", home) == "seaweedfs"
    (tmp_path / "minio").write_text("#!/bin/sh\n")
    (tmp_path / "minio").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resolve_store("auto", home) == "minio"
    assert resolve_store("none", home) == "none"


def test_a_home_stays_with_the_store_that_has_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A MinIO that is installed later does not make the lake's files vanish."""
    home = open_home(tmp_path / "home")
    home.make_folder("seaweedfs")
    (tmp_path / "minio").write_text("#!/bin/sh\n")
    (tmp_path / "minio").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert resolve_store("auto", home) == "seaweedfs"
    with pytest.raises(EmbeddedError, match="use --store seaweedfs"):
        resolve_store("minio", home)


@pytest.mark.whole
@pytest.mark.parametrize("kind", ["seaweedfs", *(["minio"] if shutil.which("minio") else [])])
def test_every_store_that_is_here_survives_a_restart(tmp_path: Path, kind: Literal["seaweedfs", "minio"]) -> None:
    """The bucket, an object and the sessions of STS, in a home with a long path; a MinIO is tried where the PATH has one."""
    options, home = StackOptions(postgres=False, store=kind), tmp_path / ("long" * 30)
    first = start_stack(home, options, lambda line: None)
    assert first.store is not None
    s3(first.store).put_object(Bucket="lake", Key=KEY, Body=CONTENT)
    first.stop()
    second = start_stack(home, options, lambda line: None)
    try:
        assert second.postgres is None
        assert read_object(second) == CONTENT
    finally:
        second.stop()

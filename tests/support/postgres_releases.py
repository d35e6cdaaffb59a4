"""Older releases of Postgres, each in the place of the package that brings the embedded one.

The builds are those of https://github.com/zonkyio/embedded-postgres-binaries (PostgreSQL's licence), from Maven Central.
"""

import os
import platform
import shutil
import stat
import tarfile
import tempfile
import zipfile
from pathlib import Path

from duckicelake.pipeline.common.java import Jar, fetch_jars, get_java_home
from tests.support.spark import jar_cache

RELEASES = {"14": "14.24.0", "15": "15.19.0", "16": "16.15.0", "17": "17.11.0"}
SHA256 = {
    ("14", "amd64"): "2722d05eb22c671104c9918d59d8ba9f5656898f5452a0207bb4cce21eef5dc4",
    ("15", "amd64"): "95f0b66fe72d4ca66c815773c44cb1196ea38552463e89a35f18114b3ed1565f",
    ("16", "amd64"): "653abc065c682b85d3da50168fb95dc524bd85426cdec9ce3695a550ef431df2",
    ("17", "amd64"): "0dd7b72b6f335b8ecfb355fa24c5781e8a93edd09880bb77eb52ebbf29b3e96d",
    ("15", "arm64v8"): "95baf4bd4af31b91b3050118df59388ed0064756b556b850669e0300aa7b9911",
    ("16", "arm64v8"): "f846a9989d686b7977d6eca9bc9d8b2b69e3f70c7eb60e032197d9c574a6136c",
    ("17", "arm64v8"): "8b042e0ea418b1927d95399207950da0734d27fe01e29503ade3bdc464ad4c2b",
}
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64v8"}
LAUNCHER = """#!/usr/bin/env bash
# Leaves out the settings that came with Postgres 18.
given=()
while [ "$#" -gt 0 ]; do
    case "$1 ${2-}" in
        "-c io_method="*) shift 2 ;;
        "-c log_connections=") given+=(-c log_connections=off); shift 2 ;;
        *) given+=("$1"); shift ;;
    esac
done
folder="$(dirname "$0")"
exec -a "$folder/postgres" "$folder/postgres-itself" "${given[@]}"
"""


def install_postgres(release: str) -> Path:
    """A folder for PYTHONPATH whose package `embedded_postgres` has that release, kept between runs."""
    folder = jar_cache() / f"postgres-{RELEASES[release]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            made = Path(scratch) / folder.name
            _unpack(_fetch(release), made / "embedded_postgres" / "pginstall")
            (made / "embedded_postgres" / "__init__.py").touch()
            made.rename(folder)
    return folder


def _fetch(release: str) -> Path:
    architecture = ARCHITECTURES[platform.machine()]
    artifact = f"embedded-postgres-binaries-linux-{architecture}"
    jar = Jar("io.zonky.test.postgres", artifact, RELEASES[release], SHA256[release, architecture])
    java = get_java_home(os.environ, jar_cache()) / "bin" / "java"
    return fetch_jars((jar,), jar_cache() / "jars", [str(java)], print)[0]


def _unpack(jar: Path, folder: Path) -> None:
    with zipfile.ZipFile(jar) as packed:
        inner = next(name for name in packed.namelist() if name.endswith(".txz"))
        with packed.open(inner) as source, tarfile.open(fileobj=source, mode="r:xz") as archive:
            archive.extractall(folder, filter="data")
    program = folder / "bin" / "postgres"
    shutil.move(program, program.with_name("postgres-itself"))
    program.write_text(LAUNCHER)
    program.chmod(program.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)

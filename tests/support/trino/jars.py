"""Trino's server and its Iceberg plugin, put together from the jars on Maven Central, where its whole release no longer is."""

import os
import shutil
import subprocess
import tempfile
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from tests.support.trino.java import TrinoMissing

VERSION = "483"
RESOLVER = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
MAIN_CLASS = "StartTrino"

# A published jar has no main class, which only the release brings. Reflection lets an older compiler do.
MAIN_SOURCE = f"""
public final class {MAIN_CLASS} {{
    public static void main(String[] words) throws Exception {{
        Class<?> server = Class.forName("io.trino.server.Server");
        server.getMethod("start", String.class).invoke(server.getConstructor().newInstance(), words[0]);
    }}
}}
"""

PLUGIN_CLASS = "io.trino.plugin.iceberg.IcebergPlugin"
GIVEN_TO_PLUGINS = (
    "io.trino:trino-spi",
    "io.airlift:slice",
    "com.fasterxml.jackson.core:jackson-annotations",
    "io.opentelemetry:opentelemetry-api",
    "io.opentelemetry:opentelemetry-context",
)
"""What the server shares with each plugin, and a plugin therefore must not bring."""
NEVER_LOADED = (
    *("net.snowflake:snowflake-jdbc", "org.alluxio:*", "org.rocksdb:*", "io.trino.coral:coral", "org.postgresql:postgresql"),
    *("com.google.cloud:*", "com.google.api:*", "com.google.api.grpc:*", "io.grpc:*", "com.azure:*"),
)
"""Other clouds and other catalogs: more than half of the plugin's bytes, and nothing that REST and S3 ask for."""

POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
<modelVersion>4.0.0</modelVersion><groupId>tests</groupId><artifactId>{name}-for-tests</artifactId><version>1</version>
<packaging>pom</packaging>
<dependencyManagement><dependencies><dependency><groupId>io.trino</groupId><artifactId>trino-root</artifactId>
<version>{version}</version><type>pom</type><scope>import</scope></dependency></dependencies></dependencyManagement>
<dependencies><dependency><groupId>io.trino</groupId><artifactId>{name}</artifactId><version>{version}</version>
<exclusions>{exclusions}</exclusions></dependency>{provided}</dependencies></project>
"""


@dataclass(frozen=True, slots=True)
class TrinoJars:
    """Where the jars lie: those of the server, and a folder with a folder for each plugin."""

    folder: Path

    @property
    def server(self) -> Path:
        return self.folder / "server"

    @property
    def plugins(self) -> Path:
        return self.folder / "plugins"


def fetch_trino(cache: Path) -> TrinoJars:
    """Trino's jars in `cache`; the first time Maven fetches them, which takes about two minutes.

    Raises: TrinoMissing: Maven or a Java compiler is missing, or a jar is not to be had
    """
    jars = TrinoJars(cache / f"trino-{VERSION}")
    if jars.folder.is_dir():
        return jars
    for program, package in (("mvn", "maven"), ("javac", "default-jdk-headless")):
        if shutil.which(program) is None:
            raise TrinoMissing(f"Putting Trino together needs {program}. On Debian: apt-get install {package}")
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        made = TrinoJars(Path(scratch) / "made")
        with ThreadPoolExecutor() as pool:
            server = pool.submit(_resolve, "trino-main", made.server, Path(scratch))
            _resolve("trino-iceberg", made.plugins / "iceberg", Path(scratch), GIVEN_TO_PLUGINS, NEVER_LOADED)
            server.result()
        _add_main_class(made.server, Path(scratch))
        _add_plugin_descriptor(made.plugins / "iceberg" / "descriptor.jar")
        # Another process may have been faster.
        if not jars.folder.is_dir():
            made.folder.replace(jars.folder)
    return jars


def _resolve(name: str, target: Path, scratch: Path, provided: tuple[str, ...] = (), excluded: tuple[str, ...] = ()) -> None:
    pom = scratch / f"{name}.xml"
    fields = {"provided": _list_tags("dependency", provided, "<scope>provided</scope>"), "exclusions": _list_tags("exclusion", excluded)}
    pom.write_text(POM.format(name=name, version=VERSION, **fields))
    options = [f"-Dmaven.repo.local={scratch / name}", "-Dmaven.artifact.threads=16", f"-DoutputDirectory={target}"]
    command = ["mvn", "--batch-mode", "--quiet", "--strict-checksums", "-f", str(pom), RESOLVER, "-DincludeScope=runtime", *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        said = [line for line in done.stdout.splitlines() if "ERROR" in line]
        raise TrinoMissing(f"Maven cannot fetch {name} {VERSION}:\n" + "\n".join(said[:10]))


def _list_tags(tag: str, names: tuple[str, ...], rest: str = "") -> str:
    split = [escape(name).split(":") for name in names]
    return "".join(f"<{tag}><groupId>{group}</groupId><artifactId>{artifact}</artifactId>{rest}</{tag}>" for group, artifact in split)


def _add_main_class(folder: Path, scratch: Path) -> None:
    source = scratch / f"{MAIN_CLASS}.java"
    source.write_text(MAIN_SOURCE)
    environ = {name: text for name, text in os.environ.items() if name != "JAVA_TOOL_OPTIONS"}
    subprocess.run(["javac", "--release", "17", "-d", folder, source], env=environ, check=True)


def _add_plugin_descriptor(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("META-INF/services/io.trino.spi.Plugin", PLUGIN_CLASS + "\n")

"""One run of the compatibility kit against a served lake, in the strictest setting of each of its switches."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from duckicelake.embedded.object_store import StoreAccess
from tests.rck.jars import MAIN_CLASS, KitJars
from tests.rest.serving import WAREHOUSE, Server

Kind = Literal["table", "view"]
Outcome = Literal["passed", "failed", "skipped"]

STRICT = {
    "rck.requires-namespace-create": "true",
    "rck.supports-serverside-retry": "true",
    "rck.overrides-requested-location": "false",
    "rck.supports-names-with-dot": "true",
    "rck.supports-names-with-slashes": "true",
    "rck.supports-nested-namespaces": "true",
    # our Kit.java clears up between the tests
    "rck.purge-test-namespaces": "false",
    "rest.client.connection-timeout-ms": "10000",
    "rest.client.socket-timeout-ms": "60000",
}
JAVA = ("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Dfile.encoding=UTF-8")
RUN_SECONDS = 600


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one test, and why when it did not pass."""

    outcome: Outcome
    reason: str


def list_keys(store: StoreAccess) -> Mapping[str, str]:
    """The client's settings with the keys of a store; where the store is, the catalog says."""
    return {"s3.access-key-id": store.access_key_id, "s3.secret-access-key": store.secret_access_key}


def run_kit(kit: KitJars, kind: Kind, server: Server, client: Mapping[str, str], base: str) -> dict[str, Result]:
    """Run one of the two kits; the results by test. `client`: further settings; `base`: the folder that tests ask for locations in."""
    settings = {**STRICT, **client} | {"kit": kind, "uri": server.uri, "warehouse": WAREHOUSE, "rck.base-location": base}
    command = [*JAVA, "-cp", kit.classpath, MAIN_CLASS]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            process.stdin.write(format_properties(settings) + "\n")
            process.stdin.flush()
            lines = process.stdout.read().splitlines()
            process.wait(RUN_SECONDS)
        finally:
            process.kill()
    assert lines[-1:] == ["done"], "\n".join(lines[-40:])
    return parse_results(lines)


def format_properties(settings: Mapping[str, str]) -> str:
    """Settings as Java reads them, without an empty line."""
    return "".join(f"{_escape(name)}={_escape(text)}\n" for name, text in settings.items())


def _escape(text: str) -> str:
    return "".join(f"\\u{ord(letter):04x}" if letter in "\\ =:#!" or not " " <= letter <= "~" else letter for letter in text)


def parse_results(lines: list[str]) -> dict[str, Result]:
    """The results that Kit.java tells, line by line; whatever else Java prints is passed over."""
    found: dict[str, Result] = {}
    for line in lines:
        outcome, _, rest = line.partition("\t")
        name, _, reason = rest.partition("\t")
        if outcome == "passed" or outcome == "failed" or outcome == "skipped":
            found[name] = Result(outcome, reason)
    return found

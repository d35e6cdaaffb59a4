"""`duckicelake check --storage`: check in the lake's own bucket that vended credentials open one table and no other object."""

import secrets
from collections.abc import Iterator
from contextlib import suppress

from rich.console import Console

from duckicelake.commands.prepare import connect_postgres, read_paths
from duckicelake.config import LakeSettings, Settings, with_slash
from duckicelake.errors import CatalogError, ServiceUnavailable, Unsupported
from duckicelake.store.credentials.isolation_check import (
    CheckOutcome,
    CheckVerdict,
    ClientCredentials,
    ScratchFolder,
    call_with_own_keys,
    check_isolation,
    check_signing,
    create_sessions,
    open_client,
)
from duckicelake.store.credentials.vending import Vendor
from duckicelake.store.objects import Objects, open_objects
from duckicelake.store.uris import parse_uri
from duckicelake.store_settings import read_store_settings, read_sts_settings

STYLES = {CheckVerdict.ok: "green", CheckVerdict.failed: "red", CheckVerdict.noted: "yellow"}


def check_storage(settings: Settings, console: Console) -> bool:
    """Print a line for each check of each lake's store, and return True if none failed."""
    proven = True
    for lake in settings.lakes():
        lines = list(_print_lines(lake, console))
        failed = sum(line.verdict is CheckVerdict.failed for line in lines)
        proven = proven and failed == 0
        console.print(
            f"[bold]{lake.name}[/]: {len(lines)} checks of the store, " + (f"{failed} failed" if failed else "all as they must be")
        )
    return proven


def _print_lines(lake: LakeSettings, console: Console) -> Iterator[CheckOutcome]:
    for line in check_lake_storage(lake):
        console.print(f"[{STYLES[line.verdict]}]{line.verdict:<6}[/] ", end="")
        console.print(f"{line.name}: {line.detail}".removesuffix(": "), markup=False, highlight=False, soft_wrap=True)
        yield line


def check_lake_storage(lake: LakeSettings) -> Iterator[CheckOutcome]:
    """Yield the outcomes for a lake's store: the catalog's own keys first, then vended credentials. An error ends the checks."""
    try:
        with connect_postgres(lake) as conn:
            lake = read_paths(conn, lake)
        scratch = f"{with_slash(lake.iceberg_path or '')}check-storage-{secrets.token_hex(8)}/"
        address = parse_uri(scratch)
        if not address.bucket:
            raise Unsupported(f"ICEBERG_PATH {lake.iceberg_path!r} is no S3: there are no keys to prove.")
        yield from _check_own_keys(open_objects(read_store_settings(lake)), scratch)
        store = read_store_settings(lake)
        root = open_client(store, ClientCredentials(store.access_key_id, store.secret_access_key))
        yield from _check_vended_keys(lake, ScratchFolder(address.bucket, f"{address.key}/", root))
    except CatalogError as error:
        yield CheckOutcome("the store can be proven", CheckVerdict.failed, error.message)


def _check_own_keys(objects: Objects, scratch: str) -> Iterator[CheckOutcome]:
    """Yield the outcomes for the catalog's own keys: conditional writes by absence and by ETag, LIST, DELETE."""
    uri = f"{scratch}own"
    try:
        yield _build_outcome("catalog's own keys: an object is written once", [objects.put_new(uri, b"1"), not objects.put_new(uri, b"2")])
        tag = objects.find_etag(uri)
        exchanged = [objects.replace(uri, b"3", tag) is not None, objects.replace(uri, b"4", tag) is None, objects.read(uri) == b"3"]
        yield _build_outcome("catalog's own keys: an object is exchanged by its tag alone", exchanged)
        yield _build_outcome("catalog's own keys: LIST finds it", [[found for found, _ in objects.list_under(scratch)] == [uri]])
    finally:
        objects.delete(uri)
    yield _build_outcome("catalog's own keys: DELETE removes it", [not objects.exists(uri)])


def _build_outcome(name: str, steps: list[bool]) -> CheckOutcome:
    wrong = [str(number) for number, went_well in enumerate(steps, 1) if not went_well]
    return CheckOutcome(name, CheckVerdict.failed if wrong else CheckVerdict.ok, f"step {', '.join(wrong)} went otherwise" if wrong else "")


def _check_vended_keys(lake: LakeSettings, field: ScratchFolder) -> Iterator[CheckOutcome]:
    store = read_store_settings(lake)
    if lake.sts_role_arn is None:
        raise Unsupported("No keys are vended: sts_role_arn is not set. Set it, or let clients have their requests signed.")
    sts = read_sts_settings(lake, lake.sts_role_arn)
    sessions = create_sessions(Vendor(store, sts), field)
    left: list[str] = []
    try:
        field.write_objects()
        yield from check_isolation(store, sts.lifetime_s, field, sessions)
    finally:
        call_with_own_keys("remove what the proof has written", lambda: left.extend(field.clear()))
        # The catalog needs no right to list multipart uploads otherwise, and each check has aborted its own.
        with suppress(ServiceUnavailable):
            call_with_own_keys("list uploads in parts", field.end_uploads)
    yield CheckOutcome("what the proof has written is removed", CheckVerdict.failed if left else CheckVerdict.ok, ", ".join(left))
    yield check_signing(store, field)

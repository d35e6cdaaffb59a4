"""What a killed `ingest` leaves: named until a week is over, and gone then."""

from datetime import UTC, datetime, timedelta

from duckicelake.pipeline.common.reports import RUN_ID
from duckicelake.pipeline.common.rest import Rest, TableIdent, open_rest
from duckicelake.pipeline.common.staging import STALE, discard_stale, format_identifier
from duckicelake.pipeline.ingest.plan import LEDGER, QUARANTINE
from tests.pipeline.holding import check_cleared
from tests.pipeline.ingest.mill import TABLE, Mill

LATER = STALE + timedelta(days=1)


def check_left(mill: Mill) -> None:
    """Fail unless the store holds what is named: now, and when branches of dead runs have gone and the tables' logs have moved on.

    No snapshot of a run that took no file is left then; data files that were noted go with the last snapshot beside main.
    """
    check_cleared(mill.served)
    rest = open_rest(mill.served.rest_catalog())
    runs = {row[0] for row in mill.rows(f"{TABLE.name}{LEDGER}", "run_id")}
    tables = [TABLE, *(TABLE.with_suffix(suffix) for suffix in (LEDGER, QUARANTINE))]
    for ident in (one for one in tables if rest.load(one) is not None):
        discard_stale(rest, ident, datetime.now(UTC) + LATER)
        shorten_log(rest, ident)
        metadata = rest.load_every(ident)
        assert metadata["refs"].keys() == {"main"}
        told = {one["summary"].get(RUN_ID) for one in metadata["snapshots"]}
        assert told - {None} <= runs, "of a run that took nothing"
    check_cleared(mill.served)


def shorten_log(rest: Rest, ident: TableIdent) -> None:
    """Have a table's metadata name no earlier one but the last, which says the same."""
    for most in ("2", "1", "2", "1"):
        update = {"action": "set-properties", "updates": {"write.metadata.previous-versions-max": most}}
        rest.commit([{"identifier": format_identifier(ident), "requirements": [], "updates": [update]}])

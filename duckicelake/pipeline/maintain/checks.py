"""What must be so before a step is taken."""

from collections.abc import Mapping
from typing import Any

from duckicelake.errors import BadRequest, CommitFailed, Forbidden, NoSuchTable, Unsupported
from duckicelake.iceberg.schema import parse_schema
from duckicelake.pipeline.asking.callers import NOBODY
from duckicelake.pipeline.ingest.staging import format_identifier
from duckicelake.pipeline.maintain.policy import Policy, Strategy
from duckicelake.pipeline.rest import Ident, Rest
from duckicelake.pipeline.verify.columns import check_readable


def check_may_write(rest: Rest, ident: Ident) -> None:
    """Have the catalog look at an account's rights before something is done that needs them, by a commit of nothing.

    Raises: Forbidden, NoSuchTable: what it says
    """
    if rest.caller is not NOBODY:
        rest.change([{"identifier": format_identifier(ident), "requirements": [], "updates": []}])


def may_write(rest: Rest, ident: Ident) -> bool:
    """Whether an account may write to a table, as far as the catalog says that it may not. Of one that cannot be shown it says nothing."""
    try:
        check_may_write(rest, ident)
    except (Forbidden, NoSuchTable):
        return False
    except (BadRequest, Unsupported, CommitFailed):
        return True
    return True


def check_possible(policy: Policy, metadata: Mapping[str, Any]) -> None:
    """Raises: Unsupported: Spark cannot read the table, or it has no order to sort by."""
    check_readable(parse_schema(next(one for one in metadata["schemas"] if one["schema-id"] == metadata["current-schema-id"])))
    if policy.strategy is Strategy.sort and not policy.order and not metadata["default-sort-order-id"]:
        raise Unsupported("strategy sort needs an order, of the policy or of the table itself")

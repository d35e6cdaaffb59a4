"""The arguments of `duckicelake pipeline ingest` as options of the job."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from duckicelake.errors import BadRequest
from duckicelake.pipeline.ingest.options import Changed, Evolve, Format, IngestOptions, Mode
from duckicelake.pipeline.ingest.target import parse_order, parse_partitions
from duckicelake.pipeline.rest import parse_ident

Word = TypeVar("Word", bound=StrEnum)


def read_options(source: str, table: str, given: Mapping[str, Any]) -> IngestOptions:
    """Return the options; `given` has the command's parameters by name.

    Raises: BadRequest: a word or a part is none that the job knows
    """
    return IngestOptions(
        source=source,
        table=parse_ident(table),
        form=_read_word(Format, "format", given["form"]),
        mode=_read_word(Mode, "mode", given["mode"]),
        evolve=_read_word(Evolve, "evolve", given["evolve"]),
        changed=_read_word(Changed, "changed", given["changed"]),
        schema=given["schema"],
        partition_by=parse_partitions(given["partition_by"]) if given["partition_by"] else (),
        sort_by=parse_order(given["sort_by"]) if given["sort_by"] else (),
        key=tuple(name.strip() for name in given["key"].split(",") if name.strip()),
        order_by=given["order_by"],
        max_quarantined=given["max_quarantined"],
        reading=read_pairs(given["option"]),
    )


def read_pairs(texts: Sequence[str] | None) -> dict[str, str]:
    """Return `name=value` texts as a mapping. Raises: BadRequest: one has no `=`."""
    pairs = [text.partition("=") for text in texts or ()]
    wrong = next((name for name, equals, _ in pairs if not equals or not name), None)
    if wrong is not None:
        raise BadRequest(f"{wrong!r} is no NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _read_word(words: type[Word], option: str, text: str) -> Word:
    try:
        return words(text)
    except ValueError as error:
        raise BadRequest(f"--{option} {text} is none of {', '.join(words)}") from error

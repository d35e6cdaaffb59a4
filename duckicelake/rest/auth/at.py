"""Where a request leads, and who sent it."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request

from duckicelake.access.sessions import EVERYBODY, Session


@dataclass(frozen=True, slots=True)
class At:
    """The warehouse that a request names, by its prefix, still percent-encoded, and who asks."""

    prefix: str
    session: Session


async def read_at(
    request: Request, prefix: Annotated[str, Path(description="The warehouse's prefix, as the configuration gives it.")]
) -> At:
    """Return where a request leads and who sent it; everybody may do everything where nobody has to say who they are."""
    return At(prefix, request.scope.get("session", EVERYBODY))


AtParam = Annotated[At, Depends(read_at)]

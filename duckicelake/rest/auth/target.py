"""Where a request leads, and who sent it."""

from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Path, Request

from duckicelake.access.sessions import ANONYMOUS, Session


@dataclass(frozen=True, slots=True)
class RequestTarget:
    """The warehouse that a request names, by its prefix, still percent-encoded, and who asks."""

    prefix: str
    session: Session


async def read_target(
    request: Request, prefix: Annotated[str, Path(description="The warehouse's prefix, as the configuration gives it.")]
) -> RequestTarget:
    """Return where a request leads and who sent it; everybody may do everything where nobody has to say who they are."""
    return RequestTarget(prefix, request.scope.get("session", ANONYMOUS))


Target = Annotated[RequestTarget, Depends(read_target)]

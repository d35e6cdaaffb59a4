"""How a route module says what it serves."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class OperationHandler:
    """The function that answers one operation, and what the OpenAPI page says of its answers and of the body or headers it takes."""

    endpoint: Callable[..., Any]
    status: int = 200
    responses: dict[int | str, dict[str, Any]] = field(default_factory=dict[int | str, dict[str, Any]])
    body: dict[str, Any] = field(default_factory=dict[str, Any])

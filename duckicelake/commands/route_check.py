"""The part of `duckicelake check` about routes: each other catalog is requested once, with the account of the settings."""

import asyncio

from rich.console import Console

from duckicelake.app import build_gateway
from duckicelake.config import Settings
from duckicelake.gateway.gateway import Gateway


def check_routes(settings: Settings, console: Console) -> bool:
    """Request the configuration of the catalog behind each route, and print the result. True if all answer."""
    gateway = build_gateway(settings)
    if gateway is None:
        return True
    reasons = asyncio.run(try_routes(gateway))
    for name, reason in reasons.items():
        console.print(f"[bold]{name}[/]: " + ("the catalog answers" if reason is None else "[red]error[/]"))
        if reason is not None:
            console.print(f"  {reason}", markup=False, highlight=False, soft_wrap=True)
    return not any(reasons.values())


async def try_routes(gateway: Gateway) -> dict[str, str | None]:
    """Return for each route the reason why its catalog cannot be used, or None."""
    gateway.open()
    try:
        found = await asyncio.gather(*(upstream.find_reason() for upstream in gateway.upstreams.values()))
        return dict(zip(gateway.upstreams, found, strict=True))
    finally:
        await gateway.close()

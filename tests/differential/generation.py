"""How hypothesis is asked for histories: always the same ones for a seed."""

from hypothesis import HealthCheck, Phase, settings


def history_settings(count: int, *, shrink: bool = False) -> settings:
    """So many histories, each slow and big as they are; with `shrink`, a failing one is made smaller."""
    unhealthy = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example, HealthCheck.filter_too_much)
    return settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        suppress_health_check=unhealthy,
        report_multiple_bugs=False,
    )

"""How many examples a property test tries: few for each change, all of them in `scripts/test --long`."""

from hypothesis import settings

EXAMPLES_PER_CHANGE = 25


def examples(count: int) -> int:
    """Return the number of examples of a property test that wants `count` of them in the long run."""
    return count if settings.get_current_profile_name() == "long" else min(count, EXAMPLES_PER_CHANGE)

"""The one moment at which a run becomes visible: all its tables in one commit, once, or not at all."""

from collections.abc import Callable, Sequence
from time import monotonic, sleep

from duckicelake.errors import CommitFailed, CommitStateUnknown
from duckicelake.pipeline.ingest.staging import Staged
from duckicelake.pipeline.rest import Rest

PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.5


def publish(
    connect: Callable[[], Rest], staged: Sequence[Staged], has_landed: Callable[[], bool], patience: float = PATIENCE_SECONDS
) -> None:
    """Move main of every table to its branch.

    Raises: CommitFailed: somebody else moved one of them, and nothing was done;
        CommitStateUnknown: nobody answered for as long as the patience lasts
    """
    changes, until = [one.format_change() for one in staged], monotonic() + patience
    while True:
        try:
            connect().commit(changes)
        except CommitFailed:
            # An earlier request of ours may have done it, its answer lost.
            if has_landed():
                return
            raise
        except CommitStateUnknown:
            if monotonic() > until:
                raise
            sleep(_PAUSE_SECONDS)
        else:
            return

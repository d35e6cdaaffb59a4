"""The one moment at which a run becomes visible: all its tables in one commit, once, or not at all."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Any

from duckicelake.errors import CatalogError, CommitFailed, CommitStateUnknown
from duckicelake.pipeline.ingest.rebasing import RebaseTarget, rebase
from duckicelake.pipeline.ingest.staging import Staged
from duckicelake.pipeline.jars import Progress
from duckicelake.pipeline.objects import open_objects
from duckicelake.pipeline.rest import UNKNOWN, Rest

REBASES = 10
PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RunPublisher:
    """What is staged, the target first; how the catalog is reached, and how a run knows that it is in the ledger.

    `appends` True: the target's rows may follow whatever others wrote meanwhile.
    """

    connect: Callable[[], Rest]
    staged: Sequence[Staged]
    has_landed: Callable[[], bool]
    appends: bool
    progress: Progress

    def publish(self) -> bool:
        """Move main of every table to its branch; whether the target's rows followed others', in a snapshot of their own.

        Raises: CommitFailed: somebody else moved one of them, and nothing was done;
            CommitStateUnknown: nobody answered for as long as the patience lasts
        """
        first, *others = [one.format_change() for one in self.staged]
        for attempt in range(REBASES if self.appends else 1):
            self.progress("publish")
            try:
                commit_once(self.connect, [first, *others], self.has_landed, PATIENCE_SECONDS)
            except CommitFailed:
                first = self._follow()
            else:
                return attempt > 0
        raise CommitFailed(f"{self.staged[0].ident} is written to all the time")

    def _follow(self) -> dict[str, Any]:
        try:
            return self._rebase()
        except CatalogError as error:
            # Whatever is in the way, beginning anew is another one.
            raise CommitFailed(error.message) from error

    def _rebase(self) -> dict[str, Any]:
        rest, target = self.connect(), self.staged[0]
        moved = next((one.ident for one in self.staged[1:] if _read_main(rest, one) != one.base), None)
        if moved is not None or not self.appends:
            raise CommitFailed(f"others wrote to {moved or target.ident}")
        self.progress(f"follow {target.ident}")
        answer = rest.load_whole(target.ident)
        given = dict(answer.get("config") or {})
        for keys in answer.get("storage-credentials") or ():
            given |= keys["config"]
        location = answer["metadata"]["location"]
        return rebase(RebaseTarget(answer["metadata"], open_objects(location, rest.catalog, given)), target)


def _read_main(rest: Rest, staged: Staged) -> int | None:
    table = rest.load(staged.ident)
    return None if table is None else table.main


def commit_once(
    connect: Callable[[], Rest], changes: Sequence[dict[str, Any]], has_landed: Callable[[], bool], patience: float = PATIENCE_SECONDS
) -> None:
    """Send a commit until it is known what became of it.

    The patience begins with the first answer that is lost: an answer may be waited for longer than that.
    Raises: CommitFailed: it was refused and nothing was done; CommitStateUnknown: nobody answered for as long as the patience lasts
    """
    until: float | None = None
    while True:
        try:
            connect().commit(changes)
        except CommitFailed:
            # An earlier request of ours may have done it, its answer lost.
            if has_landed():
                return
            raise
        except CatalogError as error:
            if until is None and not isinstance(error, CommitStateUnknown):
                raise
            # What is refused or cannot be reached now says nothing of the request before.
            until = monotonic() + patience if until is None else until
            if monotonic() >= until:
                # What is there is done; what is not may still be under way, so that it is not there is no refusal.
                if has_landed():
                    return
                told = error.message.removeprefix(UNKNOWN)
                raise CommitStateUnknown(f"{UNKNOWN}{told}") from error
            sleep(_PAUSE_SECONDS)
        else:
            return

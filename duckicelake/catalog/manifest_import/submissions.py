"""Manifests that others made, as they offer them, and what was seen of them so far."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from duckicelake.errors import BadRequest
from duckicelake.translate.bulk.counts import RowCounts
from duckicelake.translate.bulk.told import AdoptedManifest


@dataclass(frozen=True, slots=True)
class SubmittedManifest:
    """A manifest that somebody made: the name of its bytes, and what is told of it, as JSON."""

    name: str
    told: object


@dataclass(slots=True)
class VerifiedManifests:
    """What was seen of the manifests of one plan, in as many calls as they come.

    `lot` decides which are made again, to compare; `sampled` are the schemas, specs and kinds of entries of which one was. `found` are
    those that are what they should be, by what tells them apart, as they were offered. `rows` are those of the table's files.
    """

    lot: int
    sampled: set[tuple[int, int, frozenset[int]]] = field(default_factory=set[tuple[int, int, frozenset[int]]])
    found: dict[str, tuple[SubmittedManifest, AdoptedManifest]] = field(
        default_factory=dict[str, tuple[SubmittedManifest, AdoptedManifest]]
    )
    rows: RowCounts | None = None

    def find(self, digest: str, submitted: SubmittedManifest) -> AdoptedManifest | None:
        """Return a manifest that was looked at before, when the same is offered again."""
        known, found = self.found.get(digest, (None, None))
        return found if known == submitted else None


@dataclass(slots=True)
class Submission:
    """Manifests that somebody made, by what they were made of, and those of them that the load took; `needed` are all that it could
    have taken.
    """

    manifests: Mapping[str, SubmittedManifest]
    verified: VerifiedManifests
    used: set[str] = field(default_factory=set[str])
    needed: set[str] = field(default_factory=set[str])

    def check_known(self, known: AbstractSet[str]) -> None:
        """Raises: BadRequest: what tells some of them apart is not among those."""
        useless = self.manifests.keys() - known
        if useless:
            raise BadRequest(f"{len(useless)} of the {len(self.manifests)} manifests that are offered belong to no plan of this table.")

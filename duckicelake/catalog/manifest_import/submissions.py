"""Manifests that others made, as they offer them, and what was seen of them so far."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from duckicelake.errors import BadRequest
from duckicelake.translate.bulk.submissions import ParsedManifest, RowCounts


@dataclass(frozen=True, slots=True)
class SubmittedManifest:
    """A manifest that an executor wrote: the digest of its bytes, and its description as JSON."""

    name: str
    told: object


@dataclass(slots=True)
class VerifiedManifests:
    """The verified manifests of one plan, over all calls.

    `lot` decides which are made again, to compare; `sampled` are the schemas, specs and kinds of entries of which one was. `found` are
    the correct ones by digest, as they were submitted. `rows` are those of the table's files.
    """

    lot: int
    sampled: set[tuple[int, int, frozenset[int]]] = field(default_factory=set[tuple[int, int, frozenset[int]]])
    found: dict[str, tuple[SubmittedManifest, ParsedManifest]] = field(default_factory=dict[str, tuple[SubmittedManifest, ParsedManifest]])
    rows: RowCounts | None = None

    def find(self, digest: str, submitted: SubmittedManifest) -> ParsedManifest | None:
        """Return a manifest that was looked at before, when the same is offered again."""
        known, found = self.found.get(digest, (None, None))
        return found if known == submitted else None


@dataclass(slots=True)
class Submission:
    """Submitted manifests by the digest of their plans, and those that the load used; `needed` are all that it could
    have taken.
    """

    manifests: Mapping[str, SubmittedManifest]
    verified: VerifiedManifests
    used: set[str] = field(default_factory=set[str])
    needed: set[str] = field(default_factory=set[str])

    def check_known(self, known: AbstractSet[str]) -> None:
        """Raises: BadRequest: some digests are unknown."""
        useless = self.manifests.keys() - known
        if useless:
            raise BadRequest(f"{len(useless)} of the {len(self.manifests)} manifests that are offered belong to no plan of this table.")

"""The manifests that a load need not write: those that were imported before, and those of the submission that is being imported.

`catalog.manifests` looks each large manifest up in `ImportedManifests`, in the transaction that reads the table. A manifest that is
submitted is read from the store then and verified; of one that was imported before, the store is only asked if the object is there. The
rows of the import are written later, by `publish`.
"""

import json
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from itertools import groupby
from operator import attrgetter

import psycopg

from duckicelake.catalog.table_cache import FileCache
from duckicelake.errors import BadRequest, NotFound, Unsupported
from duckicelake.lake.notes import ImportedManifestRow, read_imported_manifests
from duckicelake.lake.rows import TableState
from duckicelake.store.objects import Objects
from duckicelake.translate.bulk_manifests import (
    ManifestBuilder,
    ParsedManifest,
    Recipe,
    RowCounts,
    count_file_rows,
    digest_plan,
    is_bulky,
    parse_submission,
    survives_json,
)
from duckicelake.translate.locations import format_manifest_name, manifest_uri, table_folder
from duckicelake.translate.manifests import KEY_OF, ManifestPlan
from duckicelake.translate.schemas import has_variants
from duckicelake.translate.visibility import TrackedFile


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
        """Return a manifest that was verified before, if the same one is submitted again, else None."""
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


PACKAGE = "duckicelake"
SAMPLE_RATIO = 64
"""Of so many manifests that are offered one is made again by lot, to compare."""
PREFETCH_COUNT, PREFETCH_BYTES = 16, 2 << 20
"""So many manifests are read side by side, of so many bytes at most: larger ones alone."""
STATUS_OF = attrgetter("status")
MAX_MANIFEST_BYTES, MAX_BYTES_PER_FILE = 1 << 20, 64 << 10
"""What a manifest may have, and each of its files: bounds of a thousand columns."""


@dataclass(slots=True)
class ImportedManifests:
    """The imported manifests of one table. `files` are all of its files.

    A manifest that a row records counts while its object is in the store. A submitted manifest is verified whole: see `check_submitted`.
    `prefetched` are submitted objects that were read, `unread` those that were not, the next one last. `present` are the objects in the
    table's location, listed once to see if manifests that were verified earlier are still there.
    """

    conn: psycopg.Connection
    state: TableState
    maker: ManifestBuilder
    objects: Objects
    cache: FileCache
    files: Sequence[TrackedFile]
    submission: Submission | None = None
    recipe: Recipe | None = None
    obstacle: str | None = None
    found: dict[tuple[int, int], ParsedManifest | None] = field(default_factory=dict[tuple[int, int], ParsedManifest | None])
    digests: dict[tuple[int, int], str] = field(default_factory=dict[tuple[int, int], str])
    recorded: Mapping[str, ImportedManifestRow] | None = None
    unread: list[str] | None = None
    prefetched: dict[str, bytes] = field(default_factory=dict[str, bytes])
    present: set[str] | None = None

    def find(self, plan: ManifestPlan) -> ParsedManifest | None:
        """Return the imported manifest of a plan, or None. Raises: BadRequest: the submitted one does not match the plan"""
        key = (plan.content, plan.number)
        if key not in self.found:
            self.found[key] = self._look_up(plan) if is_bulky(plan) else None
        return self.found[key]

    def is_sample(self, plan: ManifestPlan) -> bool:
        """Return True if a manifest is submitted now and belongs to the sample to compute again: some at random, and the first of
        each schema, spec and kinds of entries.
        """
        digest, submission = self.digest(plan), self.submission
        if submission is None or digest not in submission.manifests or submission.verified.find(digest, submission.manifests[digest]):
            return False
        kind = (self.maker.schemas.at(plan.snapshot_id).schema_id, plan.spec_id, frozenset(map(STATUS_OF, plan.entries)))
        is_first = kind not in submission.verified.sampled
        submission.verified.sampled.add(kind)
        return is_first or draw_lot(digest) == submission.verified.lot

    def _look_up(self, plan: ManifestPlan) -> ParsedManifest | None:
        if self.recorded is None:
            self.recorded = {row.digest: row for row in read_imported_manifests(self.conn, self.state.table.table_id)}
        submission = self.submission
        if not self.recorded and submission is None:
            return None
        digest = self.digest(plan)
        row = self.recorded.get(digest)
        if submission is not None:
            submission.needed.add(digest)
            if digest in submission.manifests:
                found = self._find_verified(digest, submission) or self.check_submitted(plan, submission)
                submission.used.add(digest)
                return found
        return None if row is None else self._find_recorded(plan, row)

    def digest(self, plan: ManifestPlan) -> str:
        """Return the digest that identifies the manifest of a plan."""
        key = (plan.content, plan.number)
        if key not in self.digests:
            self.recipe = self.recipe or build_recipe(self.state, self.maker)
            self.digests[key] = digest_plan(self.recipe, plan)
        return self.digests[key]

    def _find_recorded(self, plan: ManifestPlan, row: ImportedManifestRow) -> ParsedManifest | None:
        uri, known = manifest_uri(self.maker.note.location, row.name), self.cache.known_uris
        if known is None or (uri not in known and not self.objects.exists(uri)):
            return None
        known.add(uri)
        return parse_submission(json.loads(row.json), plan, self.maker.note, row.name)

    def _find_verified(self, digest: str, submission: Submission) -> ParsedManifest | None:
        """Return a manifest that was looked at before, if it is still there."""
        found = submission.verified.find(digest, submission.manifests[digest])
        if found is None or self.cache.known_uris is None:
            return None
        if self.present is None:
            self.present = {uri for uri, _ in self.objects.list_under(self.maker.note.location)}
        uri = found.described.manifest_path
        if uri not in self.present:
            return None
        self.cache.known_uris.add(uri)
        return found

    def check_submitted(self, plan: ManifestPlan, submission: Submission) -> ParsedManifest:
        """Look at what is offered for a plan: its bytes have the name that they should have and are a whole manifest of the
        plan's schema and spec with as many entries, and the row counts are those of the plan's files.

        Raises: BadRequest: they are not
        """
        submitted = submission.manifests[self.digest(plan)]
        if self.obstacle is None:
            self.obstacle = explain_obstacle(self.state, self.recipe or build_recipe(self.state, self.maker))
        if self.obstacle:
            raise BadRequest(f"Only the server makes this table's manifests: {self.obstacle}.")
        found = parse_submission(submitted.told, plan, self.maker.note, submitted.name)
        uri = found.described.manifest_path
        try:
            content = self._read(uri, MAX_MANIFEST_BYTES + MAX_BYTES_PER_FILE * len(plan.entries))
        except NotFound as error:
            raise BadRequest(f"The manifest {uri} that is offered is not there.") from error
        except Unsupported as error:
            raise BadRequest(f"The manifest that is offered is larger than one of {len(plan.entries)} files may be: {error}") from error
        if format_manifest_name(content) != submitted.name or len(content) != found.described.manifest_length:
            raise BadRequest(f"The object {uri} is not the manifest that is offered: it has other bytes.")
        if self.maker.count_entries(plan, content) != len(plan.entries):
            raise BadRequest(f"The object {uri} is no whole manifest of the {len(plan.entries)} files that it was planned for.")
        if not self.maker.is_shaped(plan, found.described):
            raise BadRequest(f"The manifest {uri} that is offered is said to have other partitions or row ids than its table has.")
        self._check_rows(plan, found, submission)
        assert self.cache.known_uris is not None
        self.cache.known_uris.add(uri)
        return found

    def _read(self, uri: str, most_bytes: int) -> bytes:
        """Return an object. Those offered next are read with it, side by side, unless they are large."""
        submission = self.submission
        if self.unread is None and submission is not None:
            fresh = [found for digest, found in submission.manifests.items() if submission.verified.find(digest, found) is None]
            self.unread = [manifest_uri(self.maker.note.location, found.name) for found in fresh][::-1]
        if self.unread and uri == self.unread[-1]:
            some = [self.unread.pop() for _ in range(min(PREFETCH_COUNT, len(self.unread)))]
            self.prefetched.clear()
            self.objects.each(self._prefetch, some)
        return self.prefetched.pop(uri, None) or self.objects.read_small(uri, most_bytes)

    def _prefetch(self, uri: str) -> None:
        # An error is raised when this manifest is verified.
        with suppress(NotFound, Unsupported):
            self.prefetched[uri] = self.objects.read_small(uri, PREFETCH_BYTES)

    def _check_rows(self, plan: ManifestPlan, found: ParsedManifest, submission: Submission) -> None:
        rows = submission.verified.rows = submission.verified.rows or count_file_rows(self.files)
        counts = [0, 0, 0]
        for status, alike in groupby(plan.entries, STATUS_OF):
            counts[status] += rows.sum(map(KEY_OF, alike))
        told = found.described
        if counts != [told.existing_rows_count, told.added_rows_count, told.deleted_rows_count]:
            raise BadRequest(f"The manifest {told.manifest_path} that is offered is said to have other rows than its files have.")


def draw_lot(digest: str) -> int:
    """Return a number from a manifest's digest: the sample is all manifests whose number is `VerifiedManifests.lot`."""
    return int(digest[:8], 16) % SAMPLE_RATIO


def build_recipe(state: TableState, maker: ManifestBuilder) -> Recipe:
    """Return what the manifests of a table are made of here."""
    return Recipe(version(PACKAGE), table_folder(state.data_path, state.table), maker.schemas, maker.partitioning, maker.note)


def explain_obstacle(state: TableState, recipe: Recipe) -> str:
    """Return why only the server may write a table's manifests; empty if executors may."""
    if state.name_mappings:
        return "it has files that were added by their names, into which only the server looks"
    if state.notes.refs.registered is not None:
        return "it came with a history of its own, whose numbers only the server knows"
    if any(has_variants(schema) for _, schema in recipe.schemas.timeline):
        return "its files have variants, which only the server rewrites"
    return "" if survives_json(recipe) else "its schemas hold what JSON does not say"

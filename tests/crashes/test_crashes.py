"""A server that is killed (-9) at any effect of a commit: the lake is as before or as after, and asking again does it once."""

import random
from collections.abc import Generator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from duckicelake.commands.check import list_lost_objects, remove_orphans
from tests.crashes.asked import Stand
from tests.crashes.kinds import KINDS
from tests.crashes.process import running
from tests.crashes.story import BEYOND, DONE, Onlooker, break_off, check_retry, is_same, list_effects, make_key, open_onlooker
from tests.rest.serving import Server, make_settings
from tests.rest.writing.client import open_client
from tests.support.lakes import FreshLake
from tests.support.tiers import long_after

SEED = 20261121
STEPS = 6
FEW = 4
SECOND = timedelta(seconds=1)


@dataclass(frozen=True, slots=True)
class Scene:
    """A lake, a server that nobody kills, who makes tables through it, and who looks at them."""

    lake: FreshLake
    server: Server
    stand: Stand
    look: Onlooker


@pytest.fixture
def scene(lake: FreshLake) -> Generator[Scene]:
    """A lake with nothing in it."""
    with running(make_settings(lake)) as standing:
        duck = lake.duckdb()
        yield Scene(lake, standing.server, Stand(open_client(standing.server, lake), duck), open_onlooker(lake, duck))


def list_first_effects(scene: Scene, kind: str, *, keyed: bool = False) -> list[str]:
    """What a server does that has just started, as those do that are killed: it knows nothing of the table yet."""
    with running(make_settings(scene.lake)) as fresh:
        return list_effects(fresh.server, KINDS[kind](scene.stand, f"{kind}_whole"), make_key() if keyed else None)


def crash(scene: Scene, kind: str, effect: int, *, keyed: bool | None = None, suffix: str = "") -> str:
    """Kill a server there, and look and ask again through another one; the effect's name. Without `keyed`, every other one has a key."""
    asked = KINDS[kind](scene.stand, f"{kind}_{effect}{suffix}")
    look = scene.look
    snapshots = look.count_snapshots()
    key = make_key() if (effect % 2 if keyed is None else keyed) else None
    with running(make_settings(scene.lake)) as doomed:
        name, answer = break_off(doomed.server, asked, effect, doomed.kill, key)
    if name == BEYOND:
        assert answer is not None
        assert answer.status in DONE, answer.body
        assert is_same(look.see_all(scene.server, asked), asked.after)
        return name
    assert answer is None, "the server survived"
    landed = look.has_landed(scene.server, asked, snapshots, f"{kind}, killed before {effect} ({name})")
    check_retry(look, scene.server, asked, landed, key)
    return name


def check_clean_up(scene: Scene) -> list[str]:
    """Remove what the crashes left, and return it: nothing that anybody needs goes with it."""
    [settings] = make_settings(scene.lake).lakes()
    look = scene.look
    names = [row[0] for row in look.duck.execute("SELECT table_name FROM ducklake_table_info('lake')").fetchall()]
    before = look.see(scene.server, names)
    removed = remove_orphans(settings, datetime.now(UTC) + SECOND)
    assert remove_orphans(settings, datetime.now(UTC) + SECOND) == []
    assert list_lost_objects(look.rows, scene.stand.client.objects) == []
    assert is_same(look.see(scene.server, names), before)
    return removed


@pytest.mark.whole
def test_a_server_that_is_killed_leaves_nothing_half_done(scene: Scene) -> None:
    """At effects chosen by lot; what is asked again is done once, with and without a key, and what is left over can be removed."""
    chance = random.Random(SEED)
    for kind in chance.sample(sorted(KINDS), STEPS):
        effects = list_first_effects(scene, kind)
        crash(scene, kind, chance.randrange(len(effects)))
    assert check_clean_up(scene)


@pytest.mark.whole
def test_a_lost_answer_is_heard_on_asking_again(scene: Scene) -> None:
    """Everything was done but for the answer: another server gives it, and does nothing, with a key or without."""
    effects = list_first_effects(scene, "append")
    assert crash(scene, "append", effects.index("answer"), keyed=False) == "answer"
    assert crash(scene, "append", effects.index("after COMMIT"), keyed=False) == "after COMMIT"


@pytest.mark.whole
@pytest.mark.parametrize("keyed", [pytest.param(False, id="without a key", marks=pytest.mark.long), pytest.param(True, id="with a key")])
@pytest.mark.parametrize("kind", long_after(1, ["undrop", "undrop_namespace"]))
def test_an_undrop_that_was_broken_off_is_done_whole_or_not_at_all(scene: Scene, kind: str, *, keyed: bool) -> None:
    """Before and after its COMMIT and before its answer; asking again brings everything back once."""
    effects = list_first_effects(scene, kind, keyed=keyed)
    for name in ("before COMMIT", "after COMMIT", "answer"):
        assert crash(scene, kind, effects.index(name), keyed=keyed) == name
    check_clean_up(scene)


@pytest.mark.whole
@pytest.mark.parametrize("step", ["UPDATE iceberg_purge", "delete "], ids=["before the claim", "before a deletion"])
def test_a_purge_that_was_broken_off_is_finished(scene: Scene, step: str) -> None:
    """The table has gone, its objects go with the next clean-up."""
    effects = list_first_effects(scene, "drop_purged")
    killed_at = next(i for i, effect in enumerate(effects) if effect.startswith(step))
    assert crash(scene, "drop_purged", killed_at, keyed=False).startswith(step)

    def list_left() -> set[str]:
        objects = scene.stand.client.objects.list_under(scene.lake.iceberg_path)
        return {uri for uri, _ in objects if f"/drop_purged_{killed_at}-" in uri}

    left = list_left()
    assert left
    assert left <= set(check_clean_up(scene))
    assert list_left() == set()


@pytest.mark.long
@pytest.mark.parametrize("keyed", [pytest.param(False, id="without a key"), pytest.param(True, id="with a key")])
@pytest.mark.parametrize("kind", KINDS)
def test_a_server_may_be_killed_at_every_effect(scene: Scene, kind: str, *, keyed: bool) -> None:
    """At each in turn, until it has answered; one table more or less of DuckDB's may take a statement more."""
    met: list[str] = []
    while {"answer", BEYOND}.isdisjoint(met):
        met.append(crash(scene, kind, len(met), keyed=keyed))
    effects = list_first_effects(scene, kind, keyed=keyed)
    assert abs(len(met) - len(effects)) < FEW
    for name in sorted({"before COMMIT", "after COMMIT", "answer"} - set(met)):
        assert crash(scene, kind, effects.index(name), keyed=keyed, suffix="_again") == name
    check_clean_up(scene)

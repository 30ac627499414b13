"""Two writers of one output: a slice of the search, and that the search finds what is to be found.

`make search-writers` plays all schedules.
"""

from __future__ import annotations

import functools
import random

import pytest

from tests.writers.builds import COMMITTED, Command, build, in_world
from tests.writers.search import CASES, Switch, play, play_random, random_case, schedules
from tests.writers.world import Run, World

# A thread of a run that is killed.
pytestmark = pytest.mark.filterwarnings("ignore:(?s)Exception in thread release.*SystemExit")

# Of each case, and of three runs.
SCHEDULES, RANDOM = 30, 50


@pytest.mark.parametrize("name", CASES)
def test_no_schedule_of_two_runs_spoils_a_dataset(name: str) -> None:
    case = CASES[name]
    rng = random.Random(name)
    alone = play(case, ())
    assert COMMITTED in alone.ends
    for _ in range(SCHEDULES):
        first = Switch(0, rng.randrange(alone.requests[0]), rng.choice(["expire", "kill"]))
        second = Switch(1, rng.randrange(alone.requests[0]), rng.choice(["expire", "kill"]))
        result = play(case, (first, second))
        assert (result.spoiled, result.error) == ("", ""), (first, second, result)


def test_no_schedule_of_three_runs_spoils_a_dataset() -> None:
    ends: set[str] = set()
    for seed in range(RANDOM):
        result = play_random(random_case(seed), seed)
        assert (result.spoiled, result.error) == ("", ""), (seed, result)
        ends.update(end.partition(":")[0] for end in result.ends)
    assert ends >= {"committed", "killed", "refused"}


@pytest.mark.parametrize("shards", [1, 2])
def test_a_commit_that_was_killed_before_it_had_cleared_up_is_finished(shards: int) -> None:
    case = CASES[f"same plan, {shards} shard{'s' * (shards > 1)}"]
    (requests, _) = play(case, ()).requests
    ends = [play(case, (Switch(0, at, "kill"),)).ends for at in range(requests)]
    assert ends.count(("killed", "current")) > 5
    # Before it, the other commits; after it, there is a dataset already.
    kinds = [end.partition(":")[0] for _, end in ends]
    assert kinds == sorted(kinds, key=["committed", "current", "refused"].index)


@pytest.mark.parametrize(
    "without",
    [
        *("lease check", "rename", "renew"),
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("swap", "delete", "fence")),
    ],
)
def test_the_search_finds_what_each_condition_prevents(without: str) -> None:
    """The versions of staged files are none of these: each is written once, under its own name."""
    case = CASES["after a kill, other plan first, 1 shard"]
    found = (result for _, result in schedules(case, without=without) if result.spoiled)
    assert next(found, None) is not None


def test_an_unexpected_error_is_reported_and_hangs_nothing() -> None:
    world = World()

    def fail(run: Run) -> str:
        world.storage.stat("gs://bucket/x")
        raise KeyError(run.name)

    runs = [
        Run("fails", world=world, work=fail),
        Run("builds", world=world, work=functools.partial(build, command=Command())),
    ]

    def take_turns(world: World, run: Run) -> tuple[str, Run]:
        others = [each for each in runs if each is not run and not each.end]
        return ("pause", others[0]) if others else ("", run)

    with in_world(world):
        world.play(runs, choose=take_turns)
    assert "KeyError: 'fails'" in runs[0].error
    assert (runs[1].error, runs[1].end) == ("", COMMITTED)

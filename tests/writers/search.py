"""Searches for a schedule of two or three runs that spoils a dataset.

`python -m tests.writers.search` plays all schedules of two runs with at most two preemptions, of
each case, and 100,000 random ones of three runs: `make search-writers`.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import logging
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from shardbeam.transforms.dataset.file_names import MANIFEST
from tests.writers.builds import (
    COMMITTED,
    PREVIOUS,
    REFUSED,
    Command,
    build,
    in_world,
    play_alone,
)
from tests.writers.world import OUTPUT, Run, World

ACTIONS = ("pause", "expire", "kill")
RANDOM_SCHEDULES = 100_000
# Seeds that a process plays at a time.
_SEEDS = 10_000
# The first schedules of each case that a report names.
_NAMED = 3


class Case(NamedTuple):
    """Runs at once, and what is there before.

    Attributes:
        commands: What the runs are asked for.
        before: What has been run before.
        killed: What was run then, and killed right before a reader would have seen a dataset.
    """

    commands: tuple[Command, ...]
    before: tuple[Command, ...] = ()
    killed: Command | None = None


def _cases() -> Mapping[str, Case]:
    cases = {}
    for shards in (1, 2):
        one, other = Command("p", shards), Command("q", shards)
        old = Command("old", shards)
        replacing = [each._replace(overwrite=True) for each in (one, other)]
        again = old._replace(overwrite=True)
        copying = one._replace(previous=PREVIOUS)
        previous = one._replace(output=PREVIOUS)
        for name, case in {
            "same plan": Case((one, one)),
            "other plan": Case((one, other)),
            "overwrite, same plan": Case((replacing[0], replacing[0]), (old,)),
            "overwrite, other plan": Case((replacing[0], replacing[1]), (old,)),
            "overwrite, the old plan": Case((replacing[0], again), (old,)),
            "reuse, same plan": Case((copying, copying), (previous,)),
            "reuse, other plan": Case((copying, other), (previous,)),
            "after a kill, same plan": Case((one, one), killed=one),
            "after a kill, other plan first": Case((other, one), killed=one),
            "after a kill, other plan second": Case((one, other), killed=one),
        }.items():
            cases[f"{name}, {shards} shard{'s' * (shards > 1)}"] = case
    return cases


CASES = _cases()


class Switch(NamedTuple):
    """A preemption: the run, the request before which it comes, and its effect."""

    run: int
    request: int
    action: str


class Result(NamedTuple):
    """The outcome of a schedule.

    Attributes:
        spoiled: How the invariant was hurt; empty where it was not.
        error: An error that ended a run unexpectedly, or that the same command could not repair.
        ends: How each run has ended.
        requests: How many each has made.
    """

    spoiled: str
    error: str
    ends: tuple[str, ...]
    requests: tuple[int, ...]


@functools.cache
def _before(commands: tuple[Command, ...], killed: Command | None) -> World:
    world = World()
    with in_world(world):
        for command in commands:
            play_alone(world, command)
        if killed is not None:
            play_alone(world, killed, until=f"{OUTPUT}/{MANIFEST}")
            world.let_leases_expire()
    return world


def play(case: Case, switches: Sequence[Switch], *, without: str = "") -> Result:
    """Plays one schedule: at each switch the next run goes on, in turn."""
    left = list(switches)

    def choose(world: World, run: Run) -> tuple[str, Run]:
        number = world.runs.index(run)
        if not left or left[0][:2] != (number, run.requests):
            return "", run
        others = [each for each in world.runs if each is not run and _is_live(each)]
        if not others:
            left.clear()
            return "", run
        action = left.pop(0).action
        following = next((each for each in others if world.runs.index(each) > number), others[0])
        return action, following

    return _play(case, choose, without=without)


def play_random(case: Case, seed: int, *, without: str = "") -> Result:
    """Plays one schedule that a seed decides."""
    rng = random.Random(seed)
    rate = rng.choice([0.02, 0.05, 0.15])

    def choose(world: World, run: Run) -> tuple[str, Run]:
        others = [each for each in world.runs if each is not run and _is_live(each)]
        if not others or rng.random() > rate:
            return "", run
        return rng.choice(ACTIONS), rng.choice(others)

    return _play(case, choose, without=without)


def _is_live(run: Run) -> bool:
    return not run.end and not run.is_killed


def _play(case: Case, choose: object, *, without: str) -> Result:
    before = _before(case.before, case.killed)
    world = World(before.objects, without=without)
    world.now = before.now
    runs = [
        Run(f"run {number}", world=world, work=functools.partial(build, command=command))
        for number, command in enumerate(case.commands)
    ]
    with in_world(world):
        world.play(runs, choose=choose)  # type: ignore[arg-type]
        errors = [f"{run.name}: {run.error}" for run in runs if run.error]
        if not errors and not world.spoiled and COMMITTED not in [run.end for run in runs]:
            world.let_leases_expire()
            end = play_alone(world, case.commands[-1])
            if end.startswith(REFUSED) and f"{OUTPUT}/dataset_info.json" not in world.objects:
                errors.append(f"the same command again: {end}")
    return Result(
        spoiled=world.spoiled,
        error="\n".join(errors),
        ends=tuple(run.end for run in runs),
        requests=tuple(run.requests for run in runs),
    )


def schedules(case: Case, *, without: str = "") -> Iterator[tuple[tuple[Switch, ...], Result]]:
    """Plays all schedules of two runs with at most two preemptions; late ones first."""
    alone = play(case, ())
    yield (), alone
    singles = {}
    for request, action in itertools.product(reversed(range(alone.requests[0])), ACTIONS):
        first = Switch(0, request, action)
        singles[first] = play(case, (first,), without=without)
        yield (first,), singles[first]
    for first, single in singles.items():
        # After a kill there is no other run to go on meanwhile.
        actions = ("kill",) if first.action == "kill" else ACTIONS
        for request, action in itertools.product(range(single.requests[1]), actions):
            second = Switch(1, request, action)
            yield (first, second), play(case, (first, second), without=without)


def random_case(seed: int) -> Case:
    """Chooses three runs, and what was there before."""
    rng = random.Random(f"case {seed}")
    shards = rng.choice([1, 1, 2])
    previous = Command("p", shards, output=PREVIOUS)
    before = [previous, Command("old", shards)] if rng.random() < 0.5 else [previous]
    commands = []
    for _ in range(3):
        plan = rng.choice(["p", "q", "old"])
        reuses = plan == "p" and rng.random() < 0.5
        overwrite = len(before) > 1 or rng.random() < 0.5
        commands.append(Command(plan, shards, overwrite, PREVIOUS if reuses else ""))
    return Case(tuple(commands), tuple(before))


def main() -> int:
    """Plays all, and says how many there were of each case."""
    found = 0
    with concurrent.futures.ProcessPoolExecutor() as executor:
        reports = [executor.submit(_search_case, name) for name in CASES]
        for first in range(0, RANDOM_SCHEDULES, _SEEDS):
            reports.append(executor.submit(_search_seeds, first))
        for report in concurrent.futures.as_completed(reports):
            text, count = report.result()
            print(text, flush=True)
            found += count
    return 1 if found else 0


def _search_case(name: str) -> tuple[str, int]:
    return _report(name, schedules(CASES[name]))


def _search_seeds(first: int) -> tuple[str, int]:
    seeds = range(first, first + _SEEDS)
    played = ((seed, play_random(random_case(seed), seed)) for seed in seeds)
    return _report(f"three runs at random, seeds from {first}", played)


def _report(name: str, played: Iterator[tuple[object, Result]]) -> tuple[str, int]:
    # No warnings about the staging of other plans.
    logging.disable(logging.WARNING)
    began = time.monotonic()
    counts: Counter[str] = Counter()
    lines = []
    for schedule, result in played:
        counts["schedules"] += 1
        counts["committed"] += COMMITTED in result.ends
        if result.spoiled or result.error:
            counts["found"] += 1
            if counts["found"] <= _NAMED:
                lines.append(f"{name}: {schedule}: {result}")
    lines.append(
        f"{name}: {counts['schedules']:,} schedules, {counts['committed']:,} with a commit, "
        f"{counts['found']:,} spoiled or with an error, {time.monotonic() - began:.0f} s"
    )
    return "\n".join(lines), counts["found"]


if __name__ == "__main__":
    sys.exit(main())

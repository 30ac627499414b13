"""Fuzzes the parsers: `python -m tests.fuzz.run [TARGET ...] [--inputs N] [--seed SEED]`.

Every module beside this one with functions `fuzz_<target>(random)`, or with `TARGETS` of them,
takes part. Such a function makes one random, partly broken input of the generator that it is
given, and asserts what must hold of the outcome; it may return a word for the outcome, to be
counted. Each input has a generator of its own, so that one that fails can be made again alone.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import os
import pkgutil
import random
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import NamedTuple

import tests.fuzz

_PREFIX = "fuzz_"
_INPUTS_PER_TASK = 500
# An input takes milliseconds; a parser that hangs must not go unseen.
_TASK_TIMEOUT_S = 300
_TELL_EVERY_S = 30

Fuzz = Callable[[random.Random], object]


class Task(NamedTuple):
    """Some inputs of a target."""

    target: str
    seed: str
    first: int
    inputs: int

    @property
    def command(self) -> str:
        """The command that runs them alone."""
        return (
            f"python -m tests.fuzz.run {self.target} --seed {self.seed} "
            f"--first {self.first} --inputs {self.inputs}"
        )


class FailedError(Exception):
    """An input failed: its number, and how."""

    def __init__(self, number: int, failure: str) -> None:
        super().__init__(number, failure)
        self.number = number
        self.failure = failure


def find_targets() -> dict[str, Fuzz]:
    """Finds the fuzz functions: `{target: function}`, sorted."""
    targets: dict[str, Fuzz] = {}
    for module_info in pkgutil.iter_modules(tests.fuzz.__path__):
        if module_info.name.startswith("test_") or module_info.name == "run":
            continue
        module = importlib.import_module(f"{tests.fuzz.__name__}.{module_info.name}")
        for name, value in vars(module).items():
            if name.startswith(_PREFIX) and value.__module__ == module.__name__:
                targets[name.removeprefix(_PREFIX)] = value
        targets |= getattr(module, "TARGETS", {})
    return dict(sorted(targets.items()))


def fuzz(function: Fuzz, *, target: str, seed: str, first: int, inputs: int) -> Iterator[object]:
    """Runs a fuzz function on several inputs, and yields its result for each."""
    for number in range(first, first + inputs):
        yield function(random.Random(f"{seed}/{target}/{number}"))


def run_task(task: Task) -> Counter[str]:
    """Runs some inputs, counting their outcomes.

    Raises:
        FailedError: One failed; those behind it were not run.
    """
    outcomes: Counter[str] = Counter()
    # A process that crashes or hangs prints its stacks.
    faulthandler.enable()
    faulthandler.dump_traceback_later(_TASK_TIMEOUT_S, exit=True)
    try:
        for outcome in fuzz(find_targets()[task.target], **task._asdict()):
            outcomes[str(outcome or "done")] += 1
    except Exception as error:
        raise FailedError(task.first + outcomes.total(), traceback.format_exc()) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    return outcomes


def _tasks(targets: Sequence[str], *, seed: str, first: int, inputs: int) -> Iterator[Task]:
    end = first + inputs
    for begin in range(first, end, _INPUTS_PER_TASK):
        for target in targets:
            yield Task(target, seed, begin, min(_INPUTS_PER_TASK, end - begin))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code: 1 if an input failed."""
    known = find_targets()
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.run", description=__doc__)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"of {', '.join(known)}")
    parser.add_argument("--inputs", type=int, default=100_000, help="inputs of each target")
    parser.add_argument("--first", type=int, default=0, help="number of the first input")
    parser.add_argument("--seed", default=str(random.SystemRandom().randrange(10**9)))
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    options = parser.parse_args(arguments)
    targets = options.targets or list(known)
    for target in targets:
        if target not in known:
            parser.error(f"no target {target!r}; there are {', '.join(known)}")

    print(f"seed {options.seed}, {options.inputs:,} inputs of each of {', '.join(targets)}")
    began_s = time.monotonic()
    outcomes: dict[str, Counter[str]] = {target: Counter() for target in targets}
    failures = 0
    told_s = began_s
    tasks = _tasks(targets, seed=options.seed, first=options.first, inputs=options.inputs)
    # New processes, so that none inherits threads of another's.
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as executor:
        running: dict[Future[Counter[str]], Task] = {
            executor.submit(run_task, task): task for task in tasks
        }
        for future in as_completed(running):
            task = running[future]
            try:
                outcomes[task.target].update(future.result())
            except FailedError as error:
                failures += 1
                again = task._replace(first=error.number, inputs=1)
                print(f"{error.failure}\nagain: {again.command}\n", file=sys.stderr)
            except BrokenProcessPool:
                failures += 1
                print(f"a process died, perhaps in: {task.command}", file=sys.stderr)
            if time.monotonic() - told_s >= _TELL_EVERY_S:
                told_s = time.monotonic()
                done = sum(counts.total() for counts in outcomes.values())
                print(f"{done:,} of {options.inputs * len(targets):,}", flush=True)
    for target, counts in outcomes.items():
        shown = ", ".join(f"{outcome} {count:,}" for outcome, count in sorted(counts.items()))
        print(f"{target}: {counts.total():,} inputs ({shown})")
    print(f"{failures} failures in {time.monotonic() - began_s:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())

"""Changes modules in small ways, one at a time, and counts the changes that no test notices.

`python -m tests.mutants` tries 30 seeded mutants of each module in MODULES (`make mutants`);
`python -m tests.mutants gate --seed 7` tries others of one module. Every mutant runs in a process
of its own, forked from one that has imported the libraries, so that no file is changed and a mutant
costs what its tests cost. mutmut and cosmic-ray have no seeded slice: they try every mutant.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib
import importlib.machinery
import io
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType
from typing import NamedTuple

import pytest

# Imported once for all mutants.
PRELOADED = ("apache_beam", "fsspec", "hypothesis", "msgspec", "numpy", "PIL.Image", "pyarrow")

# {module below `shardbeam`: its tests}
MODULES = {
    "pipelines.plan": ("pipelines/test_plan.py",),
    "transforms.core.sharding": ("core/test_sharding.py",),
    "transforms.commit.commit": ("commit/test_commit.py",),
    "transforms.commit.expect": ("commit/test_expect.py",),
    "transforms.commit.moves": ("commit/test_commit.py",),
    "transforms.commit.gate": (
        "commit/test_gate.py",
        "commit/test_warnings.py",
        "duplicates/test_duplicates.py",
    ),
    "transforms.dataset.collectors.statistics": ("dataset/test_statistics.py",),
    "transforms.examples.geometry.frame": (
        "examples/test_annotated_frame.py",
        "examples/test_frames.py",
    ),
    "transforms.formats.voc.voc": ("formats/test_voc.py",),
    "transforms.storage.archives.tar": ("storage/test_archives.py",),
}
MUTANTS = 30
# Some of 30 mutants do what the original does.
MAX_SURVIVORS = 3
_TESTS = Path(__file__).parent
# A mutant may loop forever.
_PATIENCE = 4
_PATIENCE_S = 20.0

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt},
    **{ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.In: ast.NotIn, ast.NotIn: ast.In},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is},
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult},
    **{ast.Div: ast.Mult, ast.Mod: ast.FloorDiv, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr},
}
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any"}


class Mutant(NamedTuple):
    """A small change of a module.

    Attributes:
        line: Where.
        change: What the line's part was, and what it is now.
        tree: The module with the change.
    """

    line: int
    change: str
    tree: ast.Module


def make_mutants(source: str, *, count: int, seed: int) -> list[Mutant]:
    """Draws mutants of a module, each of another line."""
    tree = ast.parse(source)
    draw = random.Random(seed)
    by_line: dict[int, list[int]] = {}
    for index, (node, _) in enumerate(_places(tree)):
        by_line.setdefault(node.lineno, []).append(index)
    lines = draw.sample(sorted(by_line), min(count, len(by_line)))
    mutants = []
    for index in sorted(draw.choice(by_line[line]) for line in lines):
        changed = copy.deepcopy(tree)
        # Walked in the same order, the copy has the same places.
        node, kind = list(_places(changed))[index]
        before = ast.unparse(node)
        _change(node, kind)
        ast.fix_missing_locations(changed)
        mutants.append(Mutant(node.lineno, f"{before}  ->  {ast.unparse(node)}", changed))
    return mutants


def _places(tree: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yields what can be changed, and how; types, decorators and errors stay as they are."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        if isinstance(tree, ast.ClassDef) and field == "keywords":
            continue
        for node in value if isinstance(value, list) else [value]:
            if not isinstance(node, ast.AST) or isinstance(node, (ast.JoinedStr, ast.Raise)):
                continue
            if isinstance(node, (ast.expr, ast.stmt)):
                for kind in _kinds(node):
                    yield node, kind
            yield from _places(node)


def _kinds(node: ast.expr | ast.stmt) -> list[str]:
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        return ["compare"]
    if isinstance(node, ast.BoolOp):
        return ["and or"]
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return ["not"]
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in _OPERATORS:
        return ["operator"]
    if isinstance(node, ast.Constant) and isinstance(node.value, (bool, int, float)):
        return ["constant"]
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _NAMES:
        return ["name"]
    if isinstance(node, (ast.If, ast.While, ast.IfExp)):
        return ["condition"]
    if isinstance(node, (ast.Continue, ast.Break)):
        return ["loop"]
    if isinstance(node, ast.Expr) and isinstance(node.value, (ast.Call, ast.Yield, ast.YieldFrom)):
        return ["left out"]
    return []


def _change(node: ast.expr | ast.stmt, kind: str) -> None:
    """Changes a node in place."""
    match node:
        case ast.Compare(ops=[operator]):
            node.ops = [_COMPARISONS[type(operator)]()]
        case ast.BoolOp():
            node.op = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
        case ast.UnaryOp(operand=operand):
            # Twice `not` is none.
            node.operand = ast.UnaryOp(ast.Not(), operand)
        case ast.BinOp(op=operator) | ast.AugAssign(op=operator):
            node.op = _OPERATORS[type(operator)]()
        case ast.Constant(value=bool(value)):
            node.value = not value
        case ast.Constant(value=int(value) | float(value)):
            node.value = value + 1
        case ast.Call(func=ast.Name(id=name)) if kind == "name":
            node.func = ast.Name(_NAMES[name], ast.Load())
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            node.test = ast.UnaryOp(ast.Not(), test)
        case ast.Expr():
            node.value = ast.Constant(None)
        case ast.Continue() | ast.Break():
            other = ast.Break if isinstance(node, ast.Continue) else ast.Continue
            node.__class__ = other


class _Loader(importlib.machinery.SourceFileLoader):
    """Gives a module the code of a mutant."""

    code: CodeType

    def get_code(self, fullname: str) -> CodeType:
        """Returns the mutant's code, whatever the file holds."""
        del fullname
        return self.code


class _Finder(importlib.machinery.PathFinder):
    """Finds one module as its mutant, and no other.

    Args:
        module: Its name.
        code: The mutant's.
    """

    def __init__(self, module: str, code: CodeType) -> None:
        self._module, self._code = module, code

    def find_spec(  # type: ignore[override]
        self, fullname: str, path: Sequence[str] | None = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Returns the module's spec with the mutant's code."""
        del target
        if fullname != self._module:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        loader = _Loader(fullname, spec.origin)
        loader.code = self._code
        spec.loader = loader
        return spec


def _run_tests(module: str, code: CodeType | None, tests: Sequence[str], ended: Connection) -> None:
    """Runs tests in a process of its own, and sends pytest's exit code."""
    os.setsid()
    if code is not None:
        sys.meta_path.insert(0, _Finder(module, code))
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    words = ["-x", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", "--no-header"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        ended.send(int(pytest.main([*words, *(str(_TESTS / test) for test in tests)])))
    os._exit(0)


def run_tests(
    module: str, tree: ast.Module | None, tests: Sequence[str], *, timeout_s: float | None = None
) -> bool:
    """Returns whether the tests pass with a mutant, or with the unchanged module if `tree` is None.

    Args:
        module: Its name.
        tree: The mutant.
        tests: Files below `tests/`.
        timeout_s: A run that takes longer does not pass.
    """
    code = None if tree is None else compile(tree, module, "exec")
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_run_tests, args=(module, code, tests, theirs))
    process.start()
    theirs.close()
    try:
        return ours.poll(timeout_s) and ours.recv() == 0
    except EOFError:
        # It has ended without a word.
        return False
    finally:
        # Also ends the processes that its tests have started.
        with contextlib.suppress(ProcessLookupError):
            assert process.pid is not None
            os.killpg(process.pid, signal.SIGKILL)
        process.join()


def count_survivors(name: str, *, mutants: int, seed: int, jobs: int) -> int:
    """Tries mutants of a module, and prints those that survive and how many they are.

    Returns:
        Number of survivors among `mutants`.

    Raises:
        AssertionError: The tests fail without any change.
    """
    module, tests = f"shardbeam.{name}", MODULES[name]
    path = _TESTS.parent.joinpath(*name.split(".")).with_suffix(".py")
    begin = time.monotonic()
    assert run_tests(module, None, tests), f"{module}: its tests fail without a mutant"
    timeout_s = _PATIENCE * (time.monotonic() - begin) + _PATIENCE_S
    drawn = make_mutants(path.read_text(), count=mutants, seed=seed)
    with ThreadPoolExecutor(jobs) as threads:
        passed = threads.map(
            lambda mutant: run_tests(module, mutant.tree, tests, timeout_s=timeout_s), drawn
        )
        survivors = [mutant for mutant, survives in zip(drawn, passed, strict=True) if survives]
    for mutant in survivors:
        print(f"  {name}:{mutant.line}: {' '.join(mutant.change.split())[:160]}")
    print(f"{name}: {len(survivors)} of {len(drawn)} mutants survive", flush=True)
    return len(survivors)


def main() -> int:
    """Tries the modules that the command line names, or all; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="the last part of a name")
    parser.add_argument("--mutants", type=int, default=MUTANTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    chosen = [
        name
        for name in MODULES
        if not options.modules or name.rpartition(".")[2] in options.modules
    ]
    if not chosen:
        parser.error(f"no such module; there are {', '.join(MODULES)}")
    for library in PRELOADED:
        importlib.import_module(library)
    survivors = [
        count_survivors(name, mutants=options.mutants, seed=options.seed, jobs=options.jobs)
        for name in chosen
    ]
    return int(max(survivors) > MAX_SURVIVORS)


if __name__ == "__main__":
    sys.exit(main())

"""Beam is used by its public names, and none of them is replaced."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

import grimp
import pytest

from tests.conftest import PROJECT_ROOT

FOLDERS = ("configs", "pipelines", "readers", "transforms")


def files_that_import_beam() -> list[Path]:
    files = [path for folder in FOLDERS for path in sorted((PROJECT_ROOT / folder).rglob("*.py"))]
    return [path for path in files if "apache_beam" in path.read_text()]


def is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.endswith("__") for part in name.split("."))


def beams_names(tree: ast.Module) -> tuple[set[str], list[str]]:
    """The names by which a module knows what is Beam's; and the private names that it imports."""
    names: set[str] = set()
    private = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported = {alias.name: alias for alias in node.names if "apache_beam" in alias.name}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("apache_beam"):
            imported = {f"{node.module}.{alias.name}": alias for alias in node.names}
        else:
            continue
        names |= {alias.asname or alias.name.partition(".")[0] for alias in imported.values()}
        private += [name for name in imported if is_private(name)]
    return names, private


def root_of(node: ast.AST) -> str:
    while isinstance(node, (ast.Attribute, ast.Call, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def misuses(tree: ast.Module) -> Iterator[str]:
    """Returns Beam's private names that are read, and its names that are replaced."""
    names, private = beams_names(tree)
    yield from private
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and root_of(node) in names:
            if is_private(node.attr) or not isinstance(node.ctx, ast.Load):
                yield ast.unparse(node)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("setattr", "delattr", "vars")
            and root_of(node.args[0]) in names
        ):
            yield ast.unparse(node)


@pytest.mark.parametrize(
    "path", files_that_import_beam(), ids=lambda path: path.relative_to(PROJECT_ROOT).as_posix()
)
def test_only_public_names_of_beam(path: Path) -> None:
    assert list(misuses(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    "code",
    [
        "from apache_beam.runners import _x",
        "from apache_beam._x import y",
        "import apache_beam as beam\nbeam.core._x()",
        "import apache_beam\napache_beam.core.x = 1",
        "from apache_beam.runners.worker import sdk_worker\nvars(sdk_worker)['print'] = None",
        "from apache_beam import core\nsetattr(core, 'x', 1)",
        "from apache_beam.client import Client\nClient(1)._jobs.get()",
    ],
)
def test_what_would_be_found(code: str) -> None:
    assert len(list(misuses(ast.parse(code)))) == 1


def test_no_private_method_of_beam_is_overridden() -> None:
    modules = [
        importlib.import_module(name)
        for name in grimp.build_graph("shardbeam", include_external_packages=True).modules
        if name.startswith("shardbeam") and not name.endswith(("__main__", "reading"))
    ]
    classes = {
        value
        for module in modules
        for value in vars(module).values()
        if isinstance(value, type) and value.__module__ == module.__name__
    }
    overridden = {
        f"{base.__name__}.{name}"
        for ours in classes
        for base in ours.__mro__
        if base.__module__.startswith("apache_beam")
        for name in vars(ours).keys() & vars(base).keys()
        if is_private(name) and not name.startswith(f"_{ours.__name__}__")
    }
    assert len(classes) > 100
    assert overridden == set()

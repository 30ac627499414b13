"""The recipes of examples/ run as their page says, each with its own libraries: `make recipes`."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import PROJECT_ROOT
from tests.runners.tools import TOOLS
from tests.support.dataset import run
from tests.support.pages import blocks, commands, reading_rows, table_rows

PAGE = "examples/README.md"
FOLDER = PROJECT_ROOT / "examples"
MAX_LINES = 60
# What the page on reading needs beside a recipe's own packages, in the recipe's environment.
MORE_PACKAGES = {"pytorch_detector.py": ["torchdata==0.11.0"]}
# Whether every Example was read once, though the reading stopped in between.
RESUMED = """len({target["image_id"] for _, target in before + after}) == len(before + after)"""
# {what is only in this snippet of the page on reading: what is true after it}
TRUE_AFTER = {
    "collate_fn=collate": "len(images) == len(targets) == 8",
    "tv_tensors": "images.shape == (8, 3, 128, 128) and 0.5 < images.max() <= 1",
    "StatefulDataLoader": f"{RESUMED} == len(pairs)",
    "get_state": f"{RESUMED} == len(pairs)",
    "Counter": """weights == [
        max((1 / counts[label] for label in target["labels"].tolist()), default=0)
        for _, target in pairs
    ] and sum(weights) > 1""",
    "ConcatDataset": "0.6 < np.mean([number < len(parts[0]) for number in loader.sampler]) < 0.8",
    ".mix(": """0.6 < np.divide(*(
        np.mean([4 not in target["labels"] for _, target in part])
        for part in (mixed[:400], parts[0])
    )) < 0.8""",
}
UV = TOOLS / "uv" / "bin" / "uv"
RECIPES = sorted(path.name for path in FOLDER.iterdir() if path.suffix in (".py", ".yaml"))


def packages(recipe: str) -> list[str]:
    """Returns the packages that a recipe needs beside Shardbeam, which its head names."""
    text = (FOLDER / recipe).read_text(encoding="utf-8")
    (found,) = re.findall(r"^# /// script\n(?:# .*\n)*?# dependencies = (\[.*\])\n", text, re.M)
    names: list[str] = json.loads(found)
    return names


def row(recipe: str) -> tuple[str, str]:
    """Returns the versions and the command that the page shows for a recipe."""
    (cells,) = (cells for cells in table_rows(PAGE) if cells[0] == f"[{recipe}]({recipe})")
    return cells[2], cells[3]


def is_here(package: str) -> bool:
    """Whether the tests' own environment has a package in the version that a recipe names."""
    wanted = Requirement(package)
    try:
        return wanted.specifier.contains(importlib.metadata.version(wanted.name))
    except importlib.metadata.PackageNotFoundError:
        return False


def python_for(recipe: str) -> Path:
    """Returns the Python of an environment with a recipe's packages; makes it if need be."""
    wanted = packages(recipe) + MORE_PACKAGES.get(recipe, [])
    if all(map(is_here, wanted)):
        return Path(sys.executable)
    if not UV.exists():
        pytest.skip("uv is not here; `make recipes` gets it")
    folder = TOOLS / "recipes" / Path(recipe).stem
    python, ready = folder / "bin" / "python", folder / "ready.json"
    # Checkouts may share the folder of tools.
    holds = [str(PROJECT_ROOT), *wanted]
    if not ready.exists() or json.loads(ready.read_bytes()) != holds:
        for words in (
            ["venv", "--clear", "--python", sys.executable, str(folder)],
            ["pip", "install", "--python", str(python), "--editable", str(PROJECT_ROOT), *wanted],
        ):
            done = subprocess.run([UV, *words], capture_output=True, text=True, check=False)
            if done.returncode:
                pytest.skip(f"{' '.join(wanted)} cannot be installed: {done.stderr[-500:]}")
        ready.write_text(json.dumps(holds))
    return python


def run_there(python: Path, *words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [python, *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def shardbeam(command: str, *, folder: Path) -> None:
    program, *words = shlex.split(command)
    assert program == "shardbeam"
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        result = run(*words)
    assert result.exit_code == 0, result.stderr


def check(said: str, *, folder: Path) -> None:
    """Checks that a model has learned, or that everything was read."""
    sample = json.loads(
        (folder / "demo" / "sample" / "annotations" / "instances.json").read_bytes()
    )
    if found := re.search(r"^accuracy: ([\d.]+) .*: ([\d.]+)\)$", said, re.M):
        accuracy, baseline = map(float, found.groups())
        assert accuracy > baseline + 0.2
    elif found := re.search(r"^loss: ([\d.]+) -> ([\d.]+)$", said, re.M):
        first, last = map(float, found.groups())
        assert last < first / 2
    elif found := re.search(r"^read: (\d+) images, objects by class (\[.*\])$", said, re.M):
        assert int(found[1]) == len(sample["images"])
        assert sum(json.loads(found[2])) == len(sample["annotations"])
    else:
        first, *_, last = map(float, re.findall(r"'total_loss': np.float32\(([\d.]+)", said))
        assert last < first / 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `examples` and the data of the page."""
    here = tmp_path_factory.mktemp("recipes")
    (here / "examples").symlink_to(FOLDER)
    for command in commands(PAGE):
        shardbeam(shlex.join(command), folder=here)
    return here


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_is_short_and_its_row_names_its_versions(recipe: str) -> None:
    text = (FOLDER / recipe).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    versions, command = row(recipe)
    assert versions.split(", ") == [package.replace("==", " ") for package in packages(recipe)]
    assert f"examples/{recipe}" in command


@pytest.mark.recipes
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_runs(recipe: str, folder: Path) -> None:
    python = python_for(recipe)
    *before, command = row(recipe)[1].split(" && ")
    for each in before:
        shardbeam(each, folder=folder)
    program, *words = shlex.split(command)
    assert program == "python"
    done = run_there(python, *words, folder=folder)
    assert done.returncode == 0, done.stderr[-5000:]
    print(done.stdout, end="")
    check(done.stdout + done.stderr, folder=folder)


RECIPES_OF_MODULES = pytest.mark.parametrize(
    ("module", "recipe"), [("torch", "pytorch_detector.py"), ("grain", "jax_grain.py")]
)


@pytest.mark.recipes
@pytest.mark.timeout(1800)
@RECIPES_OF_MODULES
def test_the_first_page_shows_how_to_read(module: str, recipe: str, folder: Path) -> None:
    python = python_for(recipe)
    (code,) = blocks("README.md", "python")
    code += f"import {module}\nprint(len(list({reading_rows()[module]})))"
    done = run_there(python, "-c", code.replace("demo/coco", "demo/objects"), folder=folder)
    assert done.returncode == 0, done.stderr[-5000:]
    assert done.stdout.split()[-1] == ("100" if module == "torch" else "800")


@pytest.mark.recipes
@pytest.mark.timeout(1800)
@RECIPES_OF_MODULES
def test_the_page_on_reading_is_true(module: str, recipe: str, folder: Path) -> None:
    python = python_for(recipe)
    shown = [
        code for code in blocks("docs/guide/reading.md", "python") if f"import {module}" in code
    ]
    assert len(shown) == (5 if module == "torch" else 2)
    for code in shown:
        (check,) = (check for text, check in TRUE_AFTER.items() if text in code)
        program = f"import numpy as np\n{code}\nassert {check}"
        done = run_there(python, "-c", program.replace("demo/coco", "demo/objects"), folder=folder)
        assert done.returncode == 0, f"{code}{done.stderr[-5000:]}"
        assert done.stdout

"""An error about a link to nowhere says that it is one, and where it leads."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.support.dataset import coco_words, run

COMMANDS = (
    "build {link}",
    "build coco --images {link} --annotations {coco} --output {new}",
    "build coco --images {link}/below --annotations {coco} --output {new}",
    "build coco --images {images} --annotations {link} --output {new}",
    "build coco --images {images} --annotations {coco} --output {link}",
    "build coco --images {images} --annotations {coco} --output {link}/below",
    "build coco --images {images} --annotations {coco} --output {new} --exclude {link}",
    "init {link}",
    "init {shapes} --output {link}",
    "show {link}",
    "verify {dataset} --report {link}",
    "report {dataset} --output {link}",
    "report {dataset} --output {new} --predictions {link}",
    "report {dataset} --output {new} --images {link}",
    "index {dataset} --output {link}",
    "diff {dataset} {link}",
)


@pytest.fixture(scope="module")
def dataset(shapes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    output = tmp_path_factory.mktemp("links") / "dataset"
    assert run(*coco_words(shapes, output)).exit_code == 0
    return output


@pytest.mark.parametrize("command", COMMANDS)
def test_links_to_nowhere_are_named(
    command: str, shapes: Path, dataset: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link.json"
    link.symlink_to("nowhere/x")
    words = command.format(
        link=link,
        new=tmp_path / "new",
        shapes=shapes,
        dataset=dataset,
        images=shapes / "images",
        coco=shapes / "annotations" / "instances.json",
    )
    result = run(*words.split())
    assert result.exit_code in (1, 2)
    assert f"{link} is a link to 'nowhere/x', where nothing is" in result.stderr
    assert link.is_symlink()
    assert [path.name for path in tmp_path.iterdir()] == [link.name]
    (message,) = (line for line in result.stderr.splitlines() if "error:" in line)
    assert "Traceback" not in message


@pytest.mark.parametrize(
    "command", ["index {dataset} --output {link}", "report {dataset} --output {link}"]
)
def test_a_link_to_itself_is_not_said_to_lead_to_nothing(
    command: str, dataset: Path, tmp_path: Path
) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    result = run(*command.format(dataset=dataset, link=link).split(), exit_code=2)
    assert f"--output: {link}" in result.stderr
    assert "where nothing is" not in result.stderr


def test_init_says_what_is_no_file(shapes: Path, tmp_path: Path) -> None:
    shutil.copytree(shapes / "images", tmp_path / "images")
    (tmp_path / "link.json").symlink_to("nowhere/x")
    os.mkfifo(tmp_path / "pipe.json")
    said = (
        "link.json is a link to 'nowhere/x', where nothing is",
        "pipe.json: the file cannot be read: a named pipe; only regular files are read",
    )
    alone = run("init", str(tmp_path))
    shutil.copy(shapes / "annotations" / "instances.json", tmp_path / "a.json")
    beside = run("init", str(tmp_path))
    assert (alone.exit_code, beside.exit_code) == (1, 0)
    for problem in said:
        assert problem in alone.stderr
        assert problem in beside.stderr

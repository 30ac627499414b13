"""`shardbeam diff`: two datasets, as text and as JSON."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.support.builds import Build, build
from tests.support.dataset import run
from tests.support.tfrecords import draw_image


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Build, Build]:
    """A dataset, and one with an image less, one more, one changed and one in another class."""
    folder = tmp_path_factory.mktemp("versions")
    images = folder / "images"
    for name in ("cat/a.jpg", "cat/b.jpg", "dog/c.jpg", "dog/d\x1b.jpg"):
        (images / name).parent.mkdir(parents=True, exist_ok=True)
        (images / name).write_bytes(draw_image("JPEG", width=20, height=10))
    words = ("image-folder", "--images", images, "--name", "pets")
    old = build(*words, output=folder / "old")
    (images / "cat" / "a.jpg").unlink()
    (images / "cat" / "b.jpg").write_bytes(draw_image("JPEG", width=30, height=10))
    (images / "ant").mkdir()
    (images / "ant" / "e.jpg").write_bytes(draw_image("JPEG", width=20, height=10))
    new = build(*words, output=folder / "new")
    assert (old.exit_code, new.exit_code) == (0, 0)
    return old, new


def test_two_datasets_as_text(versions: tuple[Build, Build]) -> None:
    old, new = versions
    exit_code, stdout, stderr = run("diff", str(old.output), str(new.output))
    assert (exit_code, stderr) == (0, "")
    tables = [
        [" ".join(line.split()) for line in table.splitlines()[1:]]
        for table in stdout.split("\n\n")
    ]
    counts, changes, class_ids, statistics, classes = tables
    # old, new, added, removed, moved in, moved out, image, labels, other, unchanged
    assert counts == ["train 4 4 1 1 0 0 1 0 2 0"]
    assert changes[:2] == ["removed train cat/a.jpg", "added train ant/e.jpg"]
    assert sorted(changes[2:]) == [
        "image changed train cat/b.jpg",
        "other values changed train dog/c.jpg",
        r"other values changed train dog/d\x1b.jpg",
    ]
    assert class_ids == ["ant 0", "cat 0 1", "dog 1 2"]
    assert all(line.startswith("train ") for line in statistics)
    assert classes == ["train ant images 0 1 +1", "train cat images 2 1 -1"]


def test_two_datasets_as_json(versions: tuple[Build, Build]) -> None:
    old, new = versions
    words = ["diff", "--json", str(old.output), str(new.output), "--limit", "1"]
    exit_code, stdout, _ = run(*words)
    assert (exit_code, stdout.count("\n")) == (0, 1)
    document = json.loads(stdout)
    assert (document["old"], document["new"]) == (str(old.output), str(new.output))
    assert document["same"] is False
    assert document["splits"]["train"]["removed"] == 1
    assert document["classes"]["ant"] == [None, 0]
    assert sorted(change["kinds"] for change in document["changes"]) == [
        ["added"],
        ["image"],
        ["other"],
        ["removed"],
    ]
    assert document["statistics"]["train"]["new"]["images_by_class"] == {
        "ant": 1,
        "cat": 1,
        "dog": 2,
    }


def test_a_dataset_and_itself(versions: tuple[Build, Build], tmp_path: Path) -> None:
    path = str(versions[0].output)
    exit_code, stdout, _ = run("diff", path, path)
    assert exit_code == 0
    assert stdout.endswith("\n\nno difference\n")
    copy = tmp_path / os.fsdecode(b"copy\xff")
    shutil.copytree(path, copy)
    (copy / "statistics.json").unlink()
    document = json.loads(run("diff", path, str(copy), "--json").stdout)
    assert (document["same"], document["changes"], document["statistics"]) == (True, [], {})


@pytest.mark.parametrize(
    ("words", "exit_code", "message"),
    [
        ("diff a", 2, "expected `diff OLD NEW`, got `diff a`"),
        ("diff a b c", 2, "expected `diff OLD NEW`, got `diff a b c`"),
        ("diff a b --limit 0", 2, "--limit: expected a whole number from 1 up, got '0'"),
        ("diff /nowhere/a /nowhere/b", 1, "/nowhere/a: nothing is there"),
    ],
)
def test_wrong_command_lines(words: str, exit_code: int, message: str) -> None:
    found = run(*words.split())
    assert (found.exit_code, found.stdout) == (exit_code, "")
    assert found.stderr == f"shardbeam: error: {message}\n"

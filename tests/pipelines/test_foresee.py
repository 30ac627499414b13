"""`shardbeam plan` and `shardbeam init` say which images a build will reject."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.archive_files import Files, write_files
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg

JPEG = plain_jpeg()
FOLDERS: Files = {f"{name}/{number}.jpg": JPEG for name in ("cat", "dog") for number in range(3)}
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 12345\n" % (b"ab" * 32)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of images in folders of classes, below the working folder."""
    monkeypatch.chdir(tmp_path)
    return write_files(tmp_path / "d", FOLDERS)


def plan_folders(*words: str) -> str:
    """Plans the folders of classes; returns what it says."""
    planned = run("plan", "image-folder", "--images", "d", "--output", "out", *words)
    assert planned.exit_code == 0, planned.stderr
    return planned.stdout


def test_files_that_cannot_be_decoded(data: Path) -> None:
    assert "cannot be decoded" not in plan_folders()
    write_files(data, {"cat/IMG_1.HEIC": b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", "dog/b.jxl": JPEG})
    told = plan_folders()
    assert "2 images have extensions of formats that cannot be decoded, such as cat/IMG_1" in told
    assert "a build would be refused: split 'train': 2 of 8 inputs rejected (25.00%)" in told
    (split,) = json.loads(plan_folders("--json"))["splits"].values()
    assert (split["examples"], split["rejected"]) == (6, {"unsupported_image": 2})


def test_pointers_of_git_lfs(data: Path) -> None:
    assert "Git LFS" not in plan_folders()
    write_files(data, {"cat/x.jpg": POINTER, "dog/y.jpg": POINTER})
    told = plan_folders()
    assert f"warning: {data}/cat/x.jpg: it is a Git LFS pointer; `git lfs pull`" in told
    assert "2 images are as short as a pointer" in told


def test_short_images_are_no_pointers(data: Path) -> None:
    write_files(data, {"cat/x.jpg": b"", "cat/y.jpg": JPEG[:50]})
    assert "Git LFS" not in plan_folders()


def test_the_first_rejects_are_named(data: Path) -> None:
    write_files(data, {"stray.jpg": JPEG})
    told = plan_folders()
    assert "split 'train': 1 no_class_folder; the first: stray.jpg (no_class_folder: " in told

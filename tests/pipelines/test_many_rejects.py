"""Many rejects are written to several files, so that no worker ever holds them all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardbeam.transforms.dataset import rejects
from tests.support.builds import Build, build
from tests.support.dataset import check_whole, read_dataset
from tests.support.nasty_files import JPEG

REJECTED = 60
PER_FILE = 10


def build_with_rejects(folder: Path, *more: str, exit_code: int = 0) -> Build:
    images = folder / "images"
    if not images.exists():
        (images / "cat").mkdir(parents=True)
        for number in range(5):
            (images / "cat" / f"good{number}.jpg").write_bytes(JPEG)
        for number in range(REJECTED):
            (images / "cat" / f"bad{number}.jpg").write_bytes(b"")
        (images / "outside.jpg").write_bytes(JPEG)
    words = ("image-folder", "--images", str(images), "--set", "rejects.max_ratio=1", *more)
    return build(*words, output=folder / "out", exit_code=exit_code)


def test_many_rejects_fill_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few = build_with_rejects(tmp_path)
    assert [path.name for path in (few.output / "rejects").iterdir()] == ["train.jsonl"]

    monkeypatch.setattr(rejects, "_REJECTS_PER_FILE", PER_FILE)
    many = build_with_rejects(tmp_path, "--overwrite")
    count = -(-(REJECTED + 1) // PER_FILE)
    files = sorted((many.output / "rejects").iterdir())
    # The old file, which the old manifest lists, is gone.
    assert [path.name for path in files] == [
        f"train-{index:05d}-of-{count:05d}.jsonl" for index in range(count)
    ]
    lines = [path.read_bytes().splitlines() for path in files]
    assert all(0 < len(each) < 2.5 * PER_FILE for each in lines)
    assert all([*map(_key, each)] == sorted(map(_key, each)) for each in lines)
    # The same rejects, and the same counts.
    by_key = sorted(many.rejects(), key=lambda reject: reject["key"])
    assert by_key == sorted(few.rejects(), key=lambda reject: reject["key"])
    assert many.counts() == few.counts()
    tree = read_dataset(many.output)
    assert check_whole(tree)
    listed = {file["path"] for file in many.manifest["files"]}
    assert {f"rejects/{path.name}" for path in files} <= listed


def test_many_rejects_are_refused_with_all_of_them_in_staging(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rejects, "_REJECTS_PER_FILE", PER_FILE)
    built = build_with_rejects(tmp_path, "--set", "rejects.max_ratio=0.5", exit_code=3)
    assert len(built.rejects()) == REJECTED + 1
    assert built.counts()["rejected"] == {"no_class_folder": 1, "zero_byte": REJECTED}


def _key(line: bytes) -> str:
    key: str = json.loads(line)["key"]
    return key

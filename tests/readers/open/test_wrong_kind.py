"""Errors of readers that name what a dataset has instead, or that a path is an input of a build."""

from __future__ import annotations

from pathlib import Path

import pytest

import shardbeam
from shardbeam.transforms.core.errors import InputError
from tests.support.archive_files import write_files
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg

JPEG = plain_jpeg()


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    labels = {f"labels/{n}.txt": "0 .5 .5 .2 .2\n" for n in range(2)}
    images = {f"images/{n}.jpg": JPEG for n in range(2)}
    write_files(folder / "yolo", {**images, **labels, "classes.txt": "cat\n"})
    write_files(folder / "classes", {"cat/0.jpg": JPEG, "dog/1.jpg": JPEG})
    words = ("--output", str(folder / "boxes"))
    run("build", "yolo", "--root", str(folder / "yolo"), *words, exit_code=0)
    words = ("--output", str(folder / "labels"))
    run("build", "image-folder", "--images", str(folder / "classes"), *words, exit_code=0)
    return folder


def test_readers_of_the_other_kind_are_named(data: Path) -> None:
    boxes = shardbeam.open(str(data / "boxes"), split="train")
    with pytest.raises(InputError, match=r"; it has objects: use \.detection\(\)$"):
        boxes.classification()
    labels = shardbeam.open(str(data / "labels"), split="train")
    with pytest.raises(InputError, match=r"; it has classes of images: use \.classification\(\)$"):
        labels.detection()


def test_classes_that_there_are_are_named(data: Path) -> None:
    with pytest.raises(InputError, match=r"no class 'zebra'; the first are 'cat', 'dog'$"):
        shardbeam.open(str(data / "labels"), split="train", where={"classes": ["zebra"]})


@pytest.mark.parametrize("command", ["verify", "stats", "report", "show", "index"])
@pytest.mark.parametrize("name", ["x.zip", "train.csv", "1.jpg", "folder"])
def test_an_input_is_no_dataset(command: str, name: str, tmp_path: Path) -> None:
    files: dict[str, bytes | str] = {
        "x.zip": b"PK",
        "train.csv": "a\n",
        "1.jpg": JPEG,
        "folder/1.jpg": JPEG,
    }
    write_files(tmp_path, files)
    more = ("--output", f"{tmp_path}/out") if command == "index" else ()
    result = run(command, f"{tmp_path}/{name}", *more, exit_code=1)
    advice = f"`shardbeam init {tmp_path}/{name}` writes a config for it"
    assert f": an input of a build, and no dataset; {advice}\n" in result.stderr


@pytest.mark.parametrize(
    "line",
    [
        "init URL",
        "plan URL",
        "stats URL",
        "build image-folder --images URL --output o",
        "build image-folder --images URL/images --output o",
    ],
)
@pytest.mark.parametrize("url", ["https://a.invalid/b.zip", "http://a.invalid/B.TAR.GZ?c=1"])
def test_an_archive_on_the_web_has_to_be_downloaded(line: str, url: str) -> None:
    if "URL/" in line and "?" in url:
        url = url.partition("?")[0]
    result = run(*line.replace("URL", url).split())
    assert result.exit_code in (1, 2)
    assert "archives on the web are not read: download it first\n" in result.stderr

"""Input that cannot be used as a whole gets one error line with the place and the fix."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from shardbeam.transforms.core.text import escape
from tests.support.archive_files import write_files
from tests.support.builds import Build, build, build_config, coco_document, write_coco
from tests.support.dataset import run
from tests.support.image_makers import photograph, save

JPEG = save(photograph(), "JPEG")


def make_images(root: Path, *names: str) -> Path:
    return write_files(root, dict.fromkeys(names, JPEG))


def check_refused(built: Build, *parts: str) -> None:
    """Checks that the command said so in one line, the same on stderr and in its summary."""
    lines = [line for line in built.stderr.splitlines() if line.startswith("shardbeam: error: ")]
    assert len(lines) == 1, built.stderr
    assert "Traceback" not in built.stderr
    for part in parts:
        assert part in lines[0]
    assert built.summary["exit_code"] == built.exit_code
    assert built.summary["status"] == "failed"
    assert escape(built.summary["message"]) == lines[0].removeprefix("shardbeam: error: ")
    assert not (built.output / "dataset_info.json").exists()


@pytest.mark.parametrize(
    ("listed", "file_name", "fix", "unannotated"),
    [
        ("train2017/1.jpg", "1.jpg", "add /train2017 to `images`", "keep"),
        ("1.jpg", "2.jpg", "check that the images and the annotations belong together", "drop"),
    ],
)
def test_no_match_at_all_names_a_listed_key_a_file_name_and_the_fix(
    listed: str, file_name: str, fix: str, unannotated: str, tmp_path: Path
) -> None:
    images = make_images(tmp_path / "images", listed)
    # A file that is certainly not an image of the dataset is not shown as an example.
    (images / "._0.jpg").touch()
    (images / "README").touch()
    content = coco_document({file_name: [{"bbox": [1, 1, 9, 9]}]})
    content["annotations"].append({"id": 9, "image_id": 0, "category_id": 1, "bbox": [0, 0, 1, 1]})
    annotations = write_coco(tmp_path / "a.json", content)
    built = build(
        "coco",
        *("--images", images, "--annotations", annotations),
        *("--set", f"unannotated={unannotated}"),
        output=tmp_path / "out",
        exit_code=1,
    )
    check_refused(built, str(images), repr(listed), repr(file_name), fix)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ("--runner=PortableRunner", "--job_endpoint=localhost:9"),
            "--job_endpoint: no job server answers at localhost:9",
        ),
        (
            ("--runner=FlinkRunner", "--flink_master=localhost:9"),
            "--flink_master: no Flink answers at localhost:9 (",
        ),
        (
            ("--runner=PrismRunner", "--prism_location=/nowhere/prism"),
            "--runner=PrismRunner cannot be started: ",
        ),
        (("--runner=PortableRunner",), "--runner=PortableRunner cannot be started: "),
    ],
)
def test_runners_that_are_not_there_are_named(
    flags: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    root = make_images(tmp_path / "images", "cat/1.jpg")
    built = build("image-folder", "--images", root, *flags, output=tmp_path / "out", exit_code=1)
    check_refused(built, message)
    assert "job server was asked" not in built.stderr


@pytest.mark.parametrize("flag", ["--images", "--output"])
def test_a_path_that_is_no_text_is_named(flag: str, tmp_path: Path) -> None:
    paths = {"--images": tmp_path / "images", "--output": tmp_path / "out"}
    paths[flag] = tmp_path / os.fsdecode(b"caf\xe9")
    words = ("image-folder", "--images", paths["--images"])
    built = build(*words, output=paths["--output"], exit_code=2)
    check_refused(built, "caf\\udce9: the path is not valid UTF-8")


def test_a_folder_of_rejects_and_exclusions_only_is_an_error(tmp_path: Path) -> None:
    root = make_images(tmp_path / "images", "outside.jpg", "cat/notes.txt")
    words = ("image-folder", "--images", root)
    built = build(*words, output=tmp_path / "out", exit_code=3)
    first = "1 no_class_folder; the first: outside.jpg (no_class_folder: "
    assert first in built.summary["message"]
    assert built.reasons() == {("outside.jpg", "no_class_folder"): 1}
    planned = run("plan", *map(str, words), "--output", str(tmp_path / "out"), exit_code=1)
    assert first in planned.stderr


def test_a_split_of_which_nothing_can_be_read_is_named(tmp_path: Path) -> None:
    good = make_images(tmp_path / "good", "cat/1.jpg")
    (tmp_path / "bad" / "cat").mkdir(parents=True)
    (tmp_path / "bad" / "cat" / "1.jpg").write_bytes(JPEG[:-9])
    splits = {
        split: {"format": "image-folder", "images": str(root)}
        for split, root in {"train": good, "test": tmp_path / "bad"}.items()
    }
    config = {"splits": splits, "rejects": {"max_ratio": 1}}
    built = build_config(config, folder=tmp_path, exit_code=1)
    assert "split 'test'" in built.summary["message"]
    assert "no examples" in built.summary["message"]
    assert built.reasons() == {("cat/1.jpg", "truncated"): 1}
    assert not (built.output / "dataset_info.json").exists()

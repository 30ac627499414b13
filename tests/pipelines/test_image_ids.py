"""Ids of images that repeat, and ids that are no numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.archive_files import write_files
from tests.support.builds import Build, Json, build, write_coco
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg
from tests.support.voc_files import small_voc


def write_files_that_number_from_1(folder: Path) -> list[str]:
    """Writes two COCO files that both number their images from 1; returns a build's words."""
    names = {number: f"{number}.jpg" for number in range(4)}
    write_files(folder, {f"images/{name}": plain_jpeg() for name in names.values()})
    words = ["coco", "--images", str(folder / "images")]
    for file, own in (("a.json", [0, 1]), ("b.json", [2, 3])):
        images = [{"id": place, "file_name": names[each]} for place, each in enumerate(own, 1)]
        document: Json = {
            "images": images,
            "annotations": [
                {"id": each["id"], "image_id": each["id"], "category_id": 1, "bbox": [1, 2, 9, 9]}
                for each in images
            ],
            "categories": [{"id": 1, "name": "cat"}],
        }
        words += ["--annotations", str(write_coco(folder / file, document))]
    return words


def source_ids(built: Build) -> list[str]:
    found = [example.features["image/source_id"][0] for example in built.examples()]
    return [each.decode() for each in sorted(found)]


WARNING = (
    "images of split 'train' have the same id, such as '1' of '0.jpg' and '2.jpg': ids count "
    "within one annotation file, so image/source_id does not identify an image; "
    "source_id: number (--source-id number) gives each image its own"
)


def test_ids_that_several_files_give_are_said(tmp_path: Path) -> None:
    words = write_files_that_number_from_1(tmp_path)
    built = build(*words, output=tmp_path / "out")

    assert source_ids(built) == ["1", "1", "2", "2"]
    assert built.summary["warnings"] == [WARNING]
    # Nobody reads a key that is not there.
    dropped = build(*words, "--set", "features.drop=[image/source_id]", output=tmp_path / "dropped")
    assert dropped.summary["warnings"] == []
    # It is said of each split alone: two splits may have the same ids.
    halves = build(*words[:5], output=tmp_path / "half")
    assert halves.summary["warnings"] == []


def test_numbers_identify_images(tmp_path: Path) -> None:
    words = write_files_that_number_from_1(tmp_path)
    built = build(*words, "--source-id", "number", output=tmp_path / "out")

    ids = source_ids(built)
    assert len(set(ids)) == 4
    assert all(0 <= int(each) < 1 << 63 for each in ids)
    assert built.summary["warnings"] == []
    # They stay the same whatever else is in the dataset, and whatever its seed is.
    (tmp_path / "images" / "0.jpg").unlink()
    fewer = build(
        *words,
        *("--source-id", "number", "--seed", "5", "--set", "rejects.max_ratio=1"),
        output=tmp_path / "fewer",
    )
    assert set(source_ids(fewer)) < set(ids)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (
            [],
            "none of its images with objects (1) has an id that is a number, which example_per: "
            "annotation writes as annotation/image_id; set source_id: number (--source-id number), "
            "or leave the key out (features.drop: [annotation/image_id])",
        ),
        (["--source-id", "number"], ""),
        (["--set", "features.drop=[annotation/image_id]"], ""),
    ],
)
def test_an_example_for_each_object_needs_ids_that_are_numbers(
    tmp_path: Path, settings: list[str], problem: str
) -> None:
    write_files(tmp_path / "voc", small_voc())
    words = ["voc", "--root", str(tmp_path / "voc"), "--splits", "train"]
    words += ["--set", "example_per=annotation"]
    built = build(*words, *settings, output=tmp_path / "out", exit_code=1 if problem else 0)

    if problem:
        assert problem in built.summary["message"]
        # A plan says it, too, and nothing was read or rejected.
        assert not built.summary["splits"]
        planned = run("plan", *words, "--output", str(tmp_path / "out"))
        assert problem in planned.stderr
        return
    (example,) = built.examples()
    if "number" in settings:
        (number,) = example.features["annotation/image_id"]
        assert source_ids(built) == [str(number)]

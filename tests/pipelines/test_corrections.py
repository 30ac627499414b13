"""Named corrections: their values, and the places that show them."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.support.builds import Build, build, write_coco
from tests.support.dataset import read_dataset, run
from tests.support.image_makers import photograph, save

Json = dict[str, Any]


def changes(built: Build) -> list[tuple[str, str, object, object]]:
    return [(each["key"], each["what"], each["from"], each["to"]) for each in built.corrections()]


def annotation(number: int, image: int, box: list[float] | None, **more: object) -> Json:
    found = {"id": number, "image_id": image, "category_id": 1, "area": 1.0, "iscrowd": 0, **more}
    return {**found, **({} if box is None else {"bbox": box})}


def test_what_each_changes(tmp_path: Path) -> None:
    images = tmp_path / "images"
    images.mkdir()
    pictures = {
        "a.jpg": save(photograph(width=60, height=40, seed=1), "JPEG"),
        "b.bmp": save(photograph(width=60, height=40, seed=2), "BMP"),
        "c.png": save(photograph(width=60, height=40, seed=3), "JPEG"),
        "d.jpg": save(photograph(width=120, height=40, seed=4), "JPEG"),
        "e.jpg": save(photograph(width=60, height=40, seed=5), "JPEG", exif=b"Exif\0\0" + EXIF),
    }
    for name, data in pictures.items():
        (images / name).write_bytes(data)
    sizes = {"b.bmp": (50, 40)}
    document = {
        "images": [
            {"id": number, "file_name": name, "width": width, "height": height}
            for number, name in enumerate(pictures)
            for width, height in (sizes.get(name, (0, 0)),)
        ],
        "categories": [{"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}],
        "annotations": [
            annotation(1, 0, [-2.5, 10, 20, 40]),
            annotation(2, 0, [5, 5, 10, 10]),
            annotation(2, 0, [5, 5, 10, 10]),
            annotation(3, 0, [5, 5, 0, 10]),
            annotation(4, 0, [5, 5, 9, 9], category_id=77),
            annotation(5, 0, [5, 5, 9, 9], category_id=2),
            annotation(6, 1, None, segmentation=[[1, 1, 9, 1, 9, 9]]),
        ],
    }
    annotations = write_coco(tmp_path / "a.json", document)
    words = ("coco", "--images", images, "--annotations", annotations, "--max-side", "100")
    built = build(*words, "--set", "labels.exclude=dog", output=tmp_path / "out")
    assert changes(built) == [
        ("a.jpg", "box_clipped", [-2.5, 10.0, 17.5, 50.0], [0.0, 10.0, 17.5, 40.0]),
        ("b.bmp", "box_from_polygons", None, [1.0, 1.0, 9.0, 9.0]),
        ("a.jpg", "box_without_area_dropped", [5.0, 5.0, 5.0, 15.0], None),
        ("a.jpg", "duplicate_annotation_dropped", 2, None),
        ("b.bmp", "image_converted", "bmp", "jpeg"),
        ("d.jpg", "image_resized", [120, 40], [100, 33]),
        ("a.jpg", "object_of_excluded_label_dropped", "dog", None),
        ("a.jpg", "object_of_unknown_category_dropped", 77, None),
        ("e.jpg", "orientation_applied", 3, 1),
        ("b.bmp", "size_corrected", [50, 40], [60, 40]),
        ("c.png", "wrong_extension_kept", "png", "jpeg"),
    ]
    assert {(each["split"], each["source"]) for each in built.corrections()} == {("train", "train")}


# Orientation 3: one entry of TIFF, big-endian.
EXIF = bytes.fromhex("4d4d002a00000008 0001 0112 0003 00000001 0003 0000 00000000")


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """250 images, each with a confidence; half of them have a box that reaches over the border."""
    folder = tmp_path_factory.mktemp("many")
    for name in ("images", "labels"):
        (folder / name).mkdir()
    data = save(photograph(width=16, height=16), "JPEG")
    for number in range(250):
        (folder / "images" / f"{number:03}.jpg").write_bytes(data + bytes([number]))
        lines = ["0 0.5 0.5 0.2 0.2 0.9"] + ["0 0.1 0.5 0.4 0.2"] * (number % 2)
        (folder / "labels" / f"{number:03}.txt").write_text("\n".join(lines))
    (folder / "data.yaml").write_text("train: images\nnames: [cat]\n")
    return folder


# Nearly equal pictures are not what this is about.
MANY = ("--set", "duplicates.find=none", "--set", "image.verify=header")


@pytest.fixture(scope="module")
def built(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Build:
    output = tmp_path_factory.mktemp("built") / "out"
    return build("yolo", "--root", many, *MANY, output=output)


def test_the_first_200_of_each_kind_are_named(built: Build) -> None:
    assert built.exit_code == 0
    assert built.counts()["corrections"] == {"box_clipped": 125, "confidence_dropped": 250}
    named = [(each["what"], each["key"]) for each in built.corrections()]
    assert named == [
        *(("box_clipped", f"images/{number:03}.jpg") for number in range(1, 250, 2)),
        *(("confidence_dropped", f"images/{number:03}.jpg") for number in range(200)),
    ]
    (file,) = (each for each in built.manifest["files"] if each["path"].startswith("corrections/"))
    assert file["path"] == "corrections/train.jsonl"
    assert run("verify", str(built.output)).exit_code == 0


def corrections_file(output: Path) -> bytes:
    return (output / "corrections" / "train.jsonl").read_bytes()


def test_shards_that_are_resumed_and_copied_bring_theirs(
    many: Path, built: Build, tmp_path: Path
) -> None:
    words = ("yolo", "--root", many, *MANY, "--num-shards", "3")
    more = (*words, "--set", "expect.min_images=1000")
    refused = build(*more, output=tmp_path / "resumed", exit_code=3)
    assert len(refused.corrections()) == 325
    # Those of the last run are shown, also where it was refused.
    words_of_show = ("--corrections", "--limit", "4")
    shown = [run("show", str(each.output), *words_of_show).stdout for each in (refused, built)]
    assert shown[0] == shown[1]
    assert run("show", str(refused.output), "--rejects").stdout == "no rejects\n"
    resumed = build(*words, output=tmp_path / "resumed")
    assert resumed.summary["resumed"]["shards"] == 3
    assert corrections_file(resumed.output) == corrections_file(built.output)
    copied = build(*words, "--reuse", resumed.output, output=tmp_path / "copied")
    assert copied.summary["reuse"]["copied_shards"] == 3
    assert read_dataset(copied.output) == read_dataset(resumed.output)


def test_they_go_with_the_dataset(many: Path, built: Build, tmp_path: Path) -> None:
    output = tmp_path / "out"
    shutil.copytree(built.output, output)
    # One that no manifest lists.
    stray = output / "corrections" / "test.jsonl"
    stray.write_text("")
    verified = run("verify", str(output), "--quick", exit_code=5)
    assert "corrections/test.jsonl: is not in the manifest" in verified.stdout
    stray.unlink()
    path = output / "corrections" / "train.jsonl"
    path.write_bytes(path.read_bytes().replace(b"0.9", b"0.8", 1))
    verified = run("verify", str(output), "--quick", exit_code=5)
    assert "corrections/train.jsonl" in verified.stdout
    few = tmp_path / "few" / "cat"
    few.mkdir(parents=True)
    shutil.copy(many / "images" / "000.jpg", few)
    # Only a dataset of its name or formats is replaced.
    named = ("--name", built.manifest["name"])
    words = ("image-folder", "--images", few.parent, "--overwrite", *named, *MANY)
    build(*words, output=output)
    assert not (output / "corrections").exists()


def test_they_are_shown(built: Build) -> None:
    done = run("show", str(built.output), "--corrections", "--limit", "4", exit_code=0)
    counts, lines, more = done.stdout.split("\n\n")
    assert [line.split() for line in counts.splitlines()[1:]] == [
        ["train", "box_clipped", "125", "125"],
        ["train", "confidence_dropped", "250", "200"],
    ]
    # Some of each kind.
    assert [line.split()[1:4] for line in lines.splitlines()[1:]] == [
        ["box_clipped", "images/001.jpg", "[-1.6,6.4,4.8,9.6]"],
        ["box_clipped", "images/003.jpg", "[-1.6,6.4,4.8,9.6]"],
        ["confidence_dropped", "images/000.jpg", "0.9"],
        ["confidence_dropped", "images/001.jpg", "0.9"],
    ]
    assert more == "321 more: --limit 325 shows all\n"
    document = json.loads(
        run("show", str(built.output), "--corrections", "--limit", "999", "--json").stdout
    )
    assert document["counts"] == [
        {"split": "train", "what": "box_clipped", "corrections": 125, "named": 125},
        {"split": "train", "what": "confidence_dropped", "corrections": 250, "named": 200},
    ]
    assert document["corrections"] == built.corrections()
    none = run("show", str(built.output), "--corrections", "--split", "test")
    assert none.stdout == "no corrections\n"
    # The folder of files alone.
    words = ("--corrections", "--limit", "4")
    folder = run("show", str(built.output / "corrections"), *words).stdout
    assert folder == done.stdout.replace("125    125", "  ?    125").replace(
        "250    200", "  ?    200"
    )


def test_a_dataset_of_an_older_version_counts_them_alone(built: Build, tmp_path: Path) -> None:
    output = tmp_path / "out"
    shutil.copytree(built.output, output)
    shutil.rmtree(output / "corrections")
    done = run("show", str(output), "--corrections")
    assert [line.split() for line in done.stdout.splitlines()[1:]] == [
        ["train", "box_clipped", "125", "0"],
        ["train", "confidence_dropped", "250", "0"],
    ]


def test_splits_have_files_of_their_own(tmp_path: Path) -> None:
    for split in ("train", "test"):
        folder = tmp_path / "in" / split / "cat"
        folder.mkdir(parents=True)
        (folder / f"{split}.bmp").write_bytes(save(photograph(width=20, height=20), "BMP"))
    built = build("image-folder", "--images", tmp_path / "in", output=tmp_path / "out")
    assert sorted(path.name for path in (built.output / "corrections").iterdir()) == [
        "test.jsonl",
        "train.jsonl",
    ]
    assert Counter(each["split"] for each in built.corrections()) == {"train": 1, "test": 1}

"""Maps of classes that are black and white, as users have them, from the command to the dataset."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from tests.support.builds import Build, build, build_config, write_coco
from tests.support.image_makers import photograph
from tests.support.voc_files import voc_object, voc_xml

Pixels = npt.NDArray[np.uint8]

SIZE = 32, 24


def square(value: int, *, number: int = 0) -> Pixels:
    pixels = np.zeros(SIZE[::-1], np.uint8)
    pixels[4 + number : 14 + number, 5:20] = value
    return pixels


TRIMAP = np.where(np.arange(32) < 10, square(255), square(128)).astype(np.uint8)
BINARY = [square(255), square(255, number=3)]


def write_source(
    folder: Path, maps: Sequence[Pixels], *, classes: Mapping[int, str] | None = None
) -> dict[str, object]:
    """Writes images and maps; returns the source of a config."""
    for name in ("images", "maps"):
        (folder / name).mkdir(parents=True)
    images = []
    for number, pixels in enumerate(maps):
        name = f"{number:02}"
        photograph(width=32, height=24, seed=number).save(folder / "images" / f"{name}.jpg")
        Image.fromarray(pixels).save(folder / "maps" / f"{name}.png")
        images.append({"id": number, "file_name": f"{name}.jpg", "width": 32, "height": 24})
    source: dict[str, object] = {
        "format": "coco",
        "images": str(folder / "images"),
        "semantic_masks": str(folder / "maps"),
    }
    if classes is not None:
        categories = [{"id": number, "name": name} for number, name in classes.items()]
        document = {"images": images, "annotations": [], "categories": categories}
        source["annotations"] = [str(write_coco(folder / "a.json", document))]
    return source


def write_voc(folder: Path, maps: Sequence[Pixels], *, colours: bool = False) -> None:
    for name in ("JPEGImages", "Annotations", "SegmentationClass"):
        (folder / name).mkdir(parents=True)
    for number, pixels in enumerate(maps):
        photograph(width=32, height=24, seed=number).save(folder / f"JPEGImages/{number}.jpg")
        picture = Image.fromarray(pixels)
        picture = picture.convert("RGB") if colours else picture
        picture.save(folder / f"SegmentationClass/{number}.png")
        (folder / f"Annotations/{number}.xml").write_bytes(
            voc_xml(voc_object(name="crack", xmin=1, ymin=1, xmax=9, ymax=9), size=SIZE)
        )


def maps_of(built: Build, split: str = "train") -> dict[str, Pixels]:
    key = "image/segmentation/class/encoded"
    return {
        name: np.asarray(Image.open(io.BytesIO(example.features[key][0])))
        for name, example in built.by_key(split).items()
    }


def pixels_by_class(built: Build) -> dict[str, int]:
    statistics = json.loads((built.output / "statistics.json").read_bytes())
    counts: dict[str, int] = statistics["splits"]["train"]["pixels_by_class"]
    return counts


def build_source(folder: Path, source: object, *, exit_code: int = 0, **keys: object) -> Build:
    config = {"splits": {"train": source}, **keys}
    return build_config(config, folder=folder, exit_code=exit_code)


@pytest.mark.parametrize(
    ("classes", "keys", "number", "names"),
    [
        ({5: "crack"}, {}, 5, ["crack"]),
        ({0: "background", 1: "crack"}, {}, 1, ["background", "crack"]),
        (None, {"mask_values": {255: 7}, "mask_classes": {"7": "crack"}}, 7, ["crack"]),
    ],
)
def test_white_is_a_class(
    tmp_path: Path,
    classes: Mapping[int, str] | None,
    keys: dict[str, object],
    number: int,
    names: list[str],
) -> None:
    source = write_source(tmp_path / "in", BINARY, classes=classes)

    built = build_source(tmp_path, {**source, **keys})

    for name, pixels in enumerate(BINARY):
        written = maps_of(built)[f"{name:02}.jpg"]
        np.testing.assert_array_equal(written, np.where(pixels, number, 0))
    assert list(built.summary["classes"]) == names
    is_said = f"255 is class {number}" in str(built.summary["warnings"])
    assert is_said == ("mask_values" not in keys)


@pytest.mark.parametrize(
    ("colours", "label_map"), [(False, ""), (True, "background:0,0,0::\ncrack:255,255,255::\n")]
)
def test_white_is_a_class_of_voc(tmp_path: Path, label_map: str, colours: bool) -> None:
    write_voc(tmp_path / "in", BINARY, colours=colours)
    if label_map:
        (tmp_path / "in/labelmap.txt").write_text(label_map)

    built = build("voc", "--root", tmp_path / "in", "--semantic", output=tmp_path / "out")

    warnings = str(built.summary["warnings"])
    assert "255 is class 1" in warnings
    # The label map may give the number to a class of objects.
    assert ("do not match those of the objects' classes" in warnings) == (not label_map)
    for name, pixels in enumerate(BINARY):
        written = maps_of(built)[f"JPEGImages/{name}.jpg"]
        np.testing.assert_array_equal(written, np.where(pixels, 1, 0))
    number = sum(map(np.count_nonzero, BINARY))
    assert pixels_by_class(built)["crack" if label_map else "1"] == number


def test_masks_that_differ_by_a_number_are_joined(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    names = ["a_mask", "a_mask_1", "b_mask", "c_mask", "c_mask_1"]
    maps = [*BINARY, BINARY[0], BINARY[0], np.where(BINARY[1], 7, 0).astype(np.uint8)]
    for name, pixels in zip(names, maps, strict=True):
        Image.fromarray(pixels).save(folder / f"{name}.png")
    for name in "abc":
        photograph(width=32, height=24, seed=ord(name)).save(folder / f"{name}.jpg")
    source = {"format": "masks", "images": str(folder), "mask_values": {255: 1, 7: 2}}

    built = build_source(tmp_path, source, rejects={"max_ratio": 0.5})

    np.testing.assert_array_equal(maps_of(built)["a.jpg"], np.maximum(*BINARY) // 255)
    np.testing.assert_array_equal(maps_of(built)["b.jpg"], BINARY[0] // 255)
    assert built.counts()["corrections"] == {"masks_joined": 1}
    (reject,) = built.rejects()
    assert (reject["key"], reject["reason"]) == ("c.jpg", "ambiguous_stem")
    assert "one size and one value beside 0, and have the values 0, 1, 2" in reject["detail"]


def test_a_source_that_is_mostly_255_is_warned_of(tmp_path: Path) -> None:
    # The first 50 maps have classes.
    classes = [square(1)] * 50 + [square(255)] * 60
    source = write_source(tmp_path / "in", classes)

    built = build_source(tmp_path, source)

    assert "54% of what the maps label is 255, which is written" in str(built.summary["warnings"])
    answer = {"mask_values": {1: 1, 255: "ignore"}}
    (tmp_path / "x").mkdir()
    built = build_source(tmp_path / "x", {**source, **answer})
    assert "of what the maps label" not in str(built.summary["warnings"])


@pytest.mark.parametrize("threshold", [64, 200])
def test_a_threshold_cuts_soft_masks(tmp_path: Path, threshold: int) -> None:
    soft = np.tile(np.arange(0, 256, 8, dtype=np.uint8), (24, 1))
    source = write_source(tmp_path / "in", [soft])
    values = {f"0-{threshold - 1}": 0, f"{threshold}-255": 1}

    built = build_source(tmp_path, {**source, "mask_values": values})

    np.testing.assert_array_equal(maps_of(built)["00.jpg"], soft >= threshold)


def test_steps_of_gray_end_the_build_before_it_begins(tmp_path: Path) -> None:
    source = write_source(tmp_path / "in", [TRIMAP])

    built = build_source(tmp_path, source, exit_code=2)

    assert (
        "splits.train.mask_values: missing: the pixels of 00.png have the values 0, 128, 255"
        in (built.stderr)
    )
    assert not (tmp_path / "out").exists()
    keys = {"mask_values": {128: 1, 255: "ignore"}, "mask_classes": {1: "crack"}}
    built = build_source(tmp_path, {**source, **keys})
    expected = {0: 0, 128: 1, 255: 255}
    written = maps_of(built)["00.jpg"]
    np.testing.assert_array_equal(written, np.vectorize(expected.__getitem__)(TRIMAP))


def test_the_keys_of_voc(tmp_path: Path) -> None:
    write_voc(tmp_path / "in", [TRIMAP], colours=True)
    settings = ("--set", "objects=none", "--set", "objects_lost=keep")
    words = ("voc", "--root", tmp_path / "in", "--semantic", *settings)
    values = "source.mask_values={128: 2, 255: ignore}"

    built = build(*words, "--set", values, output=tmp_path / "a")
    assert pixels_by_class(built) == {"0": 618, "2": 100, "255": 50}
    named = "source.mask_classes={2: rail, 3: sleeper}"
    built = build(*words, "--set", values, "--set", named, output=tmp_path / "b")
    assert pixels_by_class(built) == {"0": 618, "rail": 100, "255": 50}
    assert built.counts()["corrections"] == {"object_of_unknown_category_dropped": 1}
    (tmp_path / "in/labelmap.txt").write_text("background:::\ncrack:::\n")
    built = build(*words, "--set", values, "--set", named, output=tmp_path / "c", exit_code=2)
    assert "source.mask_classes: labelmap.txt names the classes, too" in built.stderr


@pytest.mark.parametrize("classes", [None, {1: "crack", 2: "rail"}])
def test_a_dataset_whose_maps_show_no_class_is_refused(
    tmp_path: Path, classes: Mapping[int, str] | None
) -> None:
    void = np.full(SIZE[::-1], 255, np.uint8)
    source = write_source(tmp_path / "in", BINARY if classes else [void], classes=classes)

    built = build_source(tmp_path, source, exit_code=3)

    assert "no map shows a class" in built.stderr
    assert "mask_values: {255: 1}" in built.stderr
    # A sample does not show what the whole dataset has.
    sample = build_source(tmp_path, source, limit=1)
    assert "no map of split 'train' shows a class" in str(sample.summary["warnings"])


def test_what_the_maps_show_is_part_of_what_decides_a_shard(tmp_path: Path) -> None:
    """A shard is not copied if the same records mean other bytes, because 255 means something else.

    The map that changes this has no image.
    """
    source = write_source(tmp_path / "in", BINARY)
    first = build_source(tmp_path, source)
    same = build(tmp_path / "out.yaml", "--reuse", first.output, output=tmp_path / "same")
    assert same.summary["reuse"]["copied_images"] == 2
    ids = square(255)
    ids[14:] = ids[:4] = ids[:, 20:] = 2
    Image.fromarray(ids).save(tmp_path / "in/maps/99.png")

    words = ("--reuse", first.output, "--set", "rejects.max_ratio=1", "--set", "expect={}")
    again = build(tmp_path / "out.yaml", *words, output=tmp_path / "again", exit_code=3)

    # Now, 255 means: ignore these pixels.
    assert "no map shows a class" in again.stderr
    assert again.summary["reuse"]["copied_images"] == 0

"""The names of a dataset's classes, and the summary's lines about them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from shardbeam.readers.open.stored_dataset import open_dataset, read_feature_map
from tests.support.archive_files import Files, write_files, write_tar
from tests.support.builds import Build, build, build_config, coco_document, write_coco
from tests.support.dataset import run
from tests.support.image_makers import photograph, pixels, save
from tests.support.voc_files import voc_object, voc_xml

PET = {"supercategory": "pets"}
DUMMY = [
    {"id": 0, "name": "pets", "supercategory": "none"},
    {"id": 1, "name": "cat", **PET},
    {"id": 2, "name": "dog", **PET},
]
BACKGROUND = [{"id": 0, "name": "background"}, {"id": 1, "name": "cat"}, {"id": 2, "name": "dog"}]
FROM_ZERO = [{"id": 0, "name": "cat"}, {"id": 1, "name": "dog"}]
EXCLUDED = "its objects are left out; labels.first_id: 0 keeps it"
SHIFTED = "class 'cat' has the id 0"


def picture(number: int) -> bytes:
    return save(photograph(seed=number), "PNG")


def write_pets(folder: Path, categories: list[dict[str, Any]], used: Iterable[int]) -> list[str]:
    """Writes an image for each category id that is used; returns the words of a build."""
    ids = list(used)
    names = [f"{number}.png" for number in range(len(ids))]
    write_files(folder, {f"images/{name}": picture(each) for each, name in enumerate(names)})
    boxes = [[{"category_id": each, "bbox": [1, 2, 10, 12]}] for each in ids]
    document = coco_document(dict(zip(names, boxes, strict=True)))
    path = write_coco(folder / "a.json", {**document, "categories": categories})
    return ["coco", "--images", str(folder / "images"), "--annotations", str(path)]


def labels(built: Build) -> dict[str, list[tuple[str, int]]]:
    assert built.exit_code == 0, built.stderr
    return {key: example.labels for key, example in sorted(built.by_key().items())}


@pytest.mark.parametrize(
    ("categories", "used", "written", "dropped", "warning"),
    [
        (DUMMY, [1, 2, 0], [("cat", 1), ("dog", 2), None], 1, EXCLUDED),
        (BACKGROUND, [0, 0, 2], [None, None, ("dog", 2)], 2, EXCLUDED),
        (FROM_ZERO, [0, 1], [("cat", 1), ("dog", 2)], 0, SHIFTED),
        (BACKGROUND[1:], [1, 2], [("cat", 1), ("dog", 2)], 0, ""),
    ],
)
def test_category_0(
    tmp_path: Path,
    categories: list[dict[str, Any]],
    used: list[int],
    written: list[tuple[str, int] | None],
    dropped: int,
    warning: str,
) -> None:
    built = build(*write_pets(tmp_path, categories, used), output=tmp_path / "out")

    assert list(labels(built).values()) == [[each] if each else [] for each in written]
    assert built.counts()["corrections"].get("object_of_background_dropped", 0) == dropped
    assert built.manifest["labels"] == {"cat": 1, "dog": 2}
    (warned,) = [text for text in built.summary["warnings"] if "never occur" not in text] or [""]
    assert warning in warned
    assert bool(warning) == bool(warned)


WITHOUT_CATS = ["--set", "labels.exclude=[cat]"]


@pytest.mark.parametrize(
    ("categories", "more"),
    [
        pytest.param(DUMMY, WITHOUT_CATS, id="dummy, without cats", marks=pytest.mark.slow),
        pytest.param(FROM_ZERO, WITHOUT_CATS, id="from zero, without cats"),
    ],
)
def test_ids_are_those_of_a_sample_and_of_a_part(
    tmp_path: Path, categories: list[dict[str, Any]], more: list[str]
) -> None:
    first, last = (categories[each]["id"] for each in (0, -1))
    words = write_pets(tmp_path / "whole", categories, [first, last, last, last])
    whole = build(*words, *more, output=tmp_path / "out")
    # The only image of a split that is built apart has no object of category 0.
    part = build(
        *write_pets(tmp_path / "part", categories, [last]), *more, output=tmp_path / "part_out"
    )
    code, _, stderr = run("build", *words, *more, "--output", str(tmp_path / "out"), "--limit", "1")
    assert code == 0, stderr
    sample = json.loads((tmp_path / "out-limit-1" / "manifest.json").read_bytes())

    assert whole.manifest["labels"] == part.manifest["labels"] == sample["labels"]
    assert labels(part)["0.png"] == labels(whole)["1.png"] == [("dog", 2)]


FOLDERS: Files = {
    f"{name}/{number}.png": picture(3 * index + number)
    for index, name in enumerate(("Dogs", "Cats", "Großer Hund"))
    for number in range(2)
}


@pytest.mark.parametrize("command", ["plan", "build"])
def test_classes_are_named_and_one_of_the_file_without_a_folder_once(
    tmp_path: Path, command: str
) -> None:
    root = write_files(tmp_path / "images", FOLDERS)
    classes = tmp_path / "classes.txt"
    classes.write_text("Dog\nCats\n")
    words = ("--images", str(root), "--output", str(tmp_path / "out"))
    named = run("plan", "image-folder", *words).stdout
    assert "\n3 classes: Cats, Dogs, Großer Hund\n" in named
    stdout = run(command, "image-folder", *words, "--classes", str(classes), "--json").stdout
    summary = json.loads(stdout)

    assert (summary["num_classes"], summary["classes"]) == (2, ["Dog", "Cats"])
    missing = f"{classes}: 1 of 2 classes have no folder: 'Dog' (did you mean 'Dogs'?)"
    assert summary["warnings"] == [missing]
    assert summary["splits"]["train"]["excluded"] == {"class_not_listed": 4}


ONES = save(Image.new("L", (40, 40), 1), "PNG")


def test_a_class_that_only_a_map_shows_occurs(tmp_path: Path) -> None:
    write_files(
        tmp_path,
        {
            "data/labelmap.txt": "background:0,0,0::\nlion:1,1,1::\nyak:2,2,2::\nemu:3,3,3::\n",
            "data/JPEGImages/a.png": save(Image.new("RGB", (40, 40)), "PNG"),
            "data/Annotations/a.xml": voc_xml(voc_object(name="yak"), size=(40, 40)),
            "data/SegmentationClass/a.png": ONES,
        },
    )
    built = build("voc", "--root", tmp_path / "data", "--semantic", output=tmp_path / "out")

    feature_map = read_feature_map(open_dataset(f"{tmp_path}/out"))
    assert feature_map.map_names() == {1: "lion", 2: "yak", 3: "emu"}
    assert "1 of 3 declared classes never occur: emu" in built.summary["warnings"]


def test_maps_without_vocs_palette_stay_numbers(tmp_path: Path) -> None:
    """Lions are not called aeroplanes, and 1 is no lion, not even in the statistics."""
    write_files(
        tmp_path,
        {
            "data/JPEGImages/a.png": save(Image.new("RGB", (40, 40)), "PNG"),
            "data/Annotations/a.xml": voc_xml(voc_object(name="lion"), size=(40, 40)),
            "data/SegmentationClass/a.png": ONES,
        },
    )
    output = tmp_path / "out"
    # Whatever the key is called.
    words = ("--set", "features.rename={image/segmentation/class/encoded: map}")
    built = build("voc", "--root", tmp_path / "data", "--semantic", *words, output=output)

    assert built.summary["classes"] == ["lion"]
    ((warning),) = built.summary["warnings"]
    assert warning.startswith("SegmentationClass/a.png: the palette is not VOC's")
    feature_map = read_feature_map(open_dataset(str(output)))
    assert (feature_map.class_names, feature_map.map_names()) == ({1: "lion"}, {})
    for flags in ((), ("--recount",)):
        counted = run("stats", str(output), "--json", *flags)
        (split,) = json.loads(counted.stdout)["splits"].values()
        assert split["pixels_by_class"] == {"1": 1600}
    assert run("report", str(output), "--output", f"{tmp_path}/page.html").exit_code == 0
    assert "class 1" in (tmp_path / "page.html").read_text()


def test_an_odd_class_of_a_webdataset_costs_its_sample(tmp_path: Path) -> None:
    members: list[tuple[str, bytes]] = []
    for number in range(120):
        members += [
            (f"{number:03}.png", picture(number)),
            (f"{number:03}.cls", b"cat" if number == 70 else b"%d" % (number % 3)),
        ]
    path = write_tar(tmp_path / "a.tar", members)
    built = build("webdataset", "--tars", path, output=tmp_path / "out")

    assert built.summary["classes"] == ["0", "1", "2"]
    (reject,) = built.rejects()
    assert (reject["key"], reject["reason"]) == ("a.tar/070.png", "annotation_malformed")
    assert "'070.cls': the class 'cat' is no number" in reject["detail"]
    both = build_config(
        {
            "source": {"format": "webdataset", "tars": [str(path)]},
            "labels": {"ids": "contiguous"},
        },
        folder=tmp_path,
        name="both",
    )
    assert (both.exit_code, both.summary["classes"]) == (0, ["0", "1", "2", "cat"])


def test_a_refused_table_without_classes_says_so(tmp_path: Path) -> None:
    """VIA writes a row a region: beside other columns, the second one of an image is a reject."""
    shape = '"{""name"":""rect"",""x"":1,""y"":1,""width"":5,""height"":5}"'
    rows = "".join(f'a.png,10,"{{}}",2,{region},{shape},"{{}}"\n' for region in range(2))
    header = (
        "filename,file_size,file_attributes,region_count,region_id,region_shape_attributes,"
        "region_attributes\n"
    )
    write_files(tmp_path, {"images/a.png": picture(0), "via.csv": header + rows})
    built = build(
        *("csv", "--manifest", tmp_path / "via.csv", "--image-root", tmp_path / "images"),
        output=tmp_path / "out",
        exit_code=3,
    )

    (warning,) = built.summary["warnings"]
    assert "features of images: file_size, file_attributes, region_count, region_id" in warning


def test_of_a_background_masks_keep_their_zeros(tmp_path: Path) -> None:
    words = write_pets(tmp_path, BACKGROUND, [2])
    mask = Image.new("L", (64, 48))
    mask.paste(2, (0, 0, 10, 10))
    write_files(tmp_path / "masks", {"0.png": save(mask, "PNG")})
    built = build(*words, "--semantic-masks", tmp_path / "masks", output=tmp_path / "out")

    assert labels(built) == {"0.png": [("dog", 2)]}
    (example,) = built.examples()
    (data,) = example.features["image/segmentation/class/encoded"]
    assert sorted(pixels(data).ravel().tolist()) == [0] * (64 * 48 - 100) + [2] * 100
    assert built.counts()["corrections"] == {}

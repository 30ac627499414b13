"""Boxes with other numbers than their format expects are read right, refused, or named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.box_files import HEIGHT, WIDTH, WRITERS, Boxes, coco, csv, jsonl
from tests.support.builds import Build, build, write_coco
from tests.support.dataset import run
from tests.support.image_makers import pixels
from tests.support.making import vertex, write_lines

PIXELS = [20, 10, 60, 40]


def in_pixels(built: Build, key: str = "a.jpg") -> list[list[float]]:
    """The boxes of an image, in pixels."""
    (example,) = (it for name, it in built.by_key().items() if name.endswith(key))
    boxes = np.array(example.boxes).reshape(-1, 4) * (WIDTH, HEIGHT, WIDTH, HEIGHT)
    written: list[list[float]] = np.round(boxes, 3).tolist()
    return written


# Corners in the wrong order

# {format: (the box 20, 10, 60, 40 with its corners exchanged, missing values in place of numbers)}
EXCHANGED: dict[str, tuple[list[list[float]], list[list[float]]]] = {
    "coco": ([[60, 40, -40, -30], [60, 10, -40, 30]], [[10, 12, -1, -1], [-1, -1, -1, -1]]),
    "lvis": ([[60, 40, -40, -30]], [[10, 12, -1, -1]]),
    # The pixel 21 is the first one, and 60 the last.
    "voc": ([[60, 40, 21, 11], [21, 40, 60, 11]], [[10, 12, -1, -1], [-1, -1, -1, -1]]),
    "cvat": ([[60, 40, 20, 10], [60, 10, 20, 40]], [[10, 12, -1, -1]]),
    "open-images": ([[0.3, 0.4, 0.1, 0.1]], [[0.1, 0.12, -1, -1]]),
    "csv": ([[60, 40, 20, 10], [20, 40, 60, 10]], [[10, 12, -1, -1], [-1, -1, -1, -1]]),
    "jsonl": ([[60, 40, 20, 10]], [[10, 12, -1, -1]]),
    "tfrecord": ([[0.3, 0.4, 0.1, 0.1]], [[0.1, 0.12, -1, -1]]),
}


@pytest.mark.parametrize("name", EXCHANGED)
def test_corners_in_the_wrong_order_are_exchanged_and_missing_values_are_not(
    name: str, tmp_path: Path
) -> None:
    exchanged, missing = EXCHANGED[name]
    beyond = [[4 * value for value in box] for box in exchanged] if name == "csv" else []
    boxes = {"a.jpg": [*exchanged, *missing, *beyond]}
    words = WRITERS[name](tmp_path / "data", boxes)
    built = build(name, *words, output=tmp_path / "out")

    assert built.exit_code == 0, built.stderr
    assert in_pixels(built) == [PIXELS] * len(exchanged)
    assert built.counts()["corrections"] == {
        "box_corners_exchanged": len(exchanged),
        "box_without_area_dropped": len(missing) + len(beyond),
    }
    first = built.corrections()[0]
    assert first["what"] == "box_corners_exchanged"
    assert first["from"][0::2] != first["to"][0::2] or first["from"][1::2] != first["to"][1::2]


def test_labelme_has_no_order_of_corners_and_yolo_refuses_negative_sides(tmp_path: Path) -> None:
    words = WRITERS["labelme"](
        tmp_path / "labelme", {"a.jpg": [[60, 40, 20, 10], [20, 40, 60, 10]]}
    )
    built = build("labelme", *words, output=tmp_path / "out")
    assert in_pixels(built) == [PIXELS] * 2
    assert built.counts()["corrections"] == {}

    lines = {"a.jpg": [[0.2, 0.25, -0.2, 0.3]], "b.jpg": [[0.2, 0.25, 0.2, 0.3]]}
    words = WRITERS["yolo"](tmp_path / "yolo", lines)
    built = build("yolo", *words, "--set", "rejects.max_ratio=1", output=tmp_path / "yolo_out")
    assert built.reasons() == {("images/a.jpg", "annotation_malformed"): 1}
    assert in_pixels(built, "b.jpg") == [PIXELS]


# Which four numbers a box has

# {box_format: the box 20, 10, 60, 40 in a picture of 200 x 100 pixels}
NUMBERS = {
    "xywh": [20, 10, 40, 30],
    "xyxy": [20, 10, 60, 40],
    "cxcywh": [40, 25, 40, 30],
    "yxyx": [10, 20, 40, 60],
}


def scaled(numbers: list[int], *, box_format: str) -> list[float]:
    """The same numbers as fractions of the sides."""
    sides = (HEIGHT, WIDTH) if box_format == "yxyx" else (WIDTH, HEIGHT)
    return [value / side for value, side in zip(numbers, sides * 2, strict=True)]


@pytest.mark.parametrize("units", ["px", "fraction"])
@pytest.mark.parametrize("box_format", NUMBERS)
def test_coco_and_lvis_take_any_four_numbers_that_the_config_names(
    box_format: str, units: str, tmp_path: Path
) -> None:
    numbers: list[float] = [*NUMBERS[box_format]]
    area, outline = 1000.0, [20.0, 10, 60, 10, 60, 40, 20, 40]
    if units == "fraction":
        numbers = scaled(NUMBERS[box_format], box_format=box_format)
        area /= WIDTH * HEIGHT
        outline = [value / side for value, side in zip(outline, (WIDTH, HEIGHT) * 4, strict=True)]
    more = {"area": area, "segmentation": [outline]}
    words = coco(tmp_path, {"a.jpg": [numbers] * 3}, **more)
    flags = ["--box-format", box_format, "--box-units", units, "--masks", "png"]
    for name in ("coco", "lvis"):
        built = build(name, *words, *flags, output=tmp_path / name)
        assert built.exit_code == 0, built.stderr
        assert in_pixels(built) == [PIXELS] * 3
        features = built.by_key()["a.jpg"].features
        assert features["image/object/area"] == [pytest.approx(1000)] * 3
        for mask in features["image/object/mask"]:
            assert int(pixels(mask).sum()) == 40 * 30


def test_an_area_that_is_no_fraction_is_computed_from_the_box(tmp_path: Path) -> None:
    words = coco(tmp_path, {"a.jpg": [[0.1, 0.1, 0.2, 0.3]]}, area=1000)
    built = build("coco", *words, "--box-units", "fraction", output=tmp_path / "out")
    assert built.by_key()["a.jpg"].features["image/object/area"] == [pytest.approx(1200)]


@pytest.mark.parametrize("units", ["", "px", "fraction"])
@pytest.mark.parametrize("box_format", NUMBERS)
def test_tables_take_any_four_numbers_that_the_config_names(
    box_format: str, units: str, tmp_path: Path
) -> None:
    numbers: list[float] = [*NUMBERS[box_format]]
    if units == "fraction":
        numbers = scaled(NUMBERS[box_format], box_format=box_format)
    flags = ["--box-format", box_format, *(["--box-units", units] if units else [])]
    # The names of the columns are those of corners, whatever is in them.
    for name, writer in (("csv", csv), ("jsonl", jsonl)):
        words = writer(tmp_path / name, {"a.jpg": [numbers]})
        built = build(name, *words, *flags, output=tmp_path / f"{name}_out")
        assert built.exit_code == 0, built.stderr
        assert in_pixels(built) == [PIXELS]


@pytest.mark.parametrize(
    ("box_format", "header"),
    [
        ("xywh", "x,y,w,h"),
        ("xywh", "left,top,width,height"),
        ("cxcywh", "x_center,y_center,width,height"),
        ("cxcywh", "x,y,w,h"),
    ],
)
def test_columns_of_sides_are_found_if_the_config_names_them(
    box_format: str, header: str, tmp_path: Path
) -> None:
    words = csv(tmp_path / "data", {"a.jpg": [NUMBERS[box_format]]}, header=header)
    built = build("csv", *words, "--box-format", box_format, output=tmp_path / "out")
    assert built.exit_code == 0, built.stderr
    assert in_pixels(built) == [PIXELS]


def test_the_units_of_a_table_can_be_set_against_what_its_first_rows_show(tmp_path: Path) -> None:
    words = csv(tmp_path / "data", {"a.jpg": [[0, 0, 1, 1]]})
    for units, box in ((None, [0, 0, WIDTH, HEIGHT]), ("px", [0, 0, 1, 1])):
        flags = [] if units is None else ["--box-units", units]
        built = build("csv", *words, *flags, output=tmp_path / str(units))
        assert in_pixels(built) == [box]
    words = csv(tmp_path / "more", {"a.jpg": [[0, 0, 1.2, 1]]})
    built = build("csv", *words, "--box-units", "fraction", output=tmp_path / "fraction")
    assert in_pixels(built) == [[0, 0, WIDTH, HEIGHT]]


def test_a_key_about_boxes_is_refused_in_a_table_without_boxes(tmp_path: Path) -> None:
    words = csv(tmp_path / "data", {"a.jpg": [[1, 2, 3, 4]]}, header="a,b,c,d")
    for key in ("box-format xyxy", "box-units px"):
        built = build("csv", *words, *f"--{key}".split(), output=tmp_path / "out")
        assert built.exit_code == 1
        assert "the rows have no columns of boxes; take it out" in built.stderr


# Numbers that are texts


def texts(value: object) -> object:
    """The same value with texts in the place of numbers."""
    if isinstance(value, list):
        return [texts(each) for each in value]
    return f"{value:.4f}" if isinstance(value, (int, float)) else value


@pytest.mark.parametrize("name", ["coco", "lvis"])
def test_numbers_of_coco_may_be_texts(name: str, tmp_path: Path) -> None:
    coco(tmp_path, {"a.jpg": [], "b.jpg": []})
    outline = [[20, 10, 60, 10, 60, 40, 20, 40]]
    annotation = {"bbox": [20, 10, 40, 30], "area": 1100, "segmentation": outline, "iscrowd": 0}
    document = {
        "images": [
            {"id": 1.0, "file_name": "a.jpg", "width": "200.0", "height": "100"},
            {"id": "007", "file_name": "b.jpg", "width": WIDTH, "height": HEIGHT},
        ],
        "categories": [{"id": "3", "name": "dog"}, {"id": 4.0, "name": "cat"}],
        "annotations": [
            {"id": "9", "image_id": 1, "category_id": "3", **annotation},
            {"id": 10.0, "image_id": 1.0, "category_id": 4.0, **annotation},
            {
                "id": "11.0",
                "image_id": "007",
                "category_id": "4",
                **{key: texts(value) for key, value in annotation.items()},
            },
            {"id": 12, "image_id": 7, "category_id": 3, **annotation},
        ],
    }
    write_coco(tmp_path / "instances.json", document)
    words = ("--images", tmp_path / "images", "--annotations", tmp_path / "instances.json")
    flags = ["--masks", "png", "--set", "rejects.max_ratio=1"]
    built = build(name, *words, *flags, output=tmp_path / "out")
    assert built.exit_code == 0, built.stderr
    assert in_pixels(built) == [PIXELS] * 2
    assert in_pixels(built, "b.jpg") == [PIXELS]
    examples = built.by_key()
    assert examples["a.jpg"].labels == [("dog", 3), ("cat", 4)]
    assert examples["b.jpg"].labels == [("cat", 4)]
    for key, source_id in (("a.jpg", b"1"), ("b.jpg", b"007")):
        features = examples[key].features
        assert features["image/source_id"] == [source_id]
        assert features["image/object/area"][0] == 1100
        assert int(pixels(features["image/object/mask"][0]).sum()) == 40 * 30
    # Ids keep their text: 7 is not 007.
    assert built.reasons() == {("image_id=7", "unknown_image_id"): 1}
    assert built.counts()["corrections"] == {}


def test_a_text_that_is_no_number_rejects_its_image(tmp_path: Path) -> None:
    boxes = {f"{word}.jpg": [[word, "1", "2", "3"]] for word in ("nan", "inf", "x", "1,5")}
    words = coco(tmp_path, {**boxes, "good.jpg": [["20", "10", "40", "30"]]})
    built = build("coco", *words, "--set", "rejects.max_ratio=1", output=tmp_path / "out")
    assert built.reasons() == {(key, "annotation_malformed"): 1 for key in boxes}
    assert in_pixels(built, "good.jpg") == [PIXELS]


def test_numbers_of_labelme_may_be_texts(tmp_path: Path) -> None:
    words = WRITERS["labelme"](tmp_path / "data", {"a.jpg": [["20", "10.0", "60.00", "40"]]})
    path = tmp_path / "data" / "a.json"
    path.write_text(path.read_text().replace(f'"imageWidth": {WIDTH}', '"imageWidth": "200.0"'))
    built = build("labelme", *words, output=tmp_path / "out")
    assert in_pixels(built) == [PIXELS]
    assert built.counts()["corrections"] == {}


def test_numbers_of_json_lines_may_be_texts(tmp_path: Path) -> None:
    words = jsonl(tmp_path / "data", {"a.jpg": [["20", "10.0", "60.00", 40]]})
    built = build("jsonl", *words, output=tmp_path / "out")
    assert in_pixels(built) == [PIXELS]
    sides = {"xMin": "0.1", "yMin": "0.1", "xMax": "0.3", "yMax": "0.4"}
    row = vertex("a.jpg", use="training", boundingBoxAnnotations=[{"displayName": "dog", **sides}])
    write_lines(tmp_path / "data" / "boxes.jsonl", [row])
    built = build("jsonl", *words, output=tmp_path / "vertex")
    assert in_pixels(built) == [PIXELS]


def test_a_class_id_with_a_decimal_point_is_the_whole_number(tmp_path: Path) -> None:
    words = csv(tmp_path / "data", {"a.jpg": [[20, 10, 60, 40]], "b.jpg": [[20, 10, 60, 40]]})
    path = tmp_path / "data" / "boxes.csv"
    path.write_text(path.read_text().replace("dog", "3.0", 1).replace("dog", "12"))
    built = build("csv", *words, output=tmp_path / "out")
    assert built.by_key()["a.jpg"].labels == [("3", 3)]
    assert built.by_key()["b.jpg"].labels == [("12", 12)]


# Fractions in the place of pixels

FRACTIONS = [[0.1, 0.1, 0.2, 0.3], [0.5, 0.5, 0.25, 0.5], [0.25, 0.5, 0.5, 0.5]]
CORNERS_IN_FRACTIONS = [[0.1, 0.1, 0.3, 0.4], [0.5, 0.5, 1, 1], [0, 0.25, 0.5, 0.5]]
IN_PIXELS = ("coco", "lvis", "voc", "cvat", "labelme")


def fractions_of(name: str) -> list[list[float]]:
    return FRACTIONS if name in ("coco", "lvis") else CORNERS_IN_FRACTIONS


@pytest.mark.parametrize("name", IN_PIXELS)
def test_a_source_whose_boxes_are_all_fractions_is_refused_where_pixels_belong(
    name: str, tmp_path: Path
) -> None:
    # A box without an area says nothing.
    boxes: Boxes = {
        "a.jpg": [*fractions_of(name)[:2], [0, 0, 0, 0]],
        "b.jpg": fractions_of(name)[2:],
    }
    words = WRITERS[name](tmp_path / "data", boxes)
    built = build(name, *words, output=tmp_path / "out")
    assert built.exit_code == 1
    assert not (tmp_path / "out" / "dataset_info.json").exists()
    assert "all 3 boxes lie within 0 to 1" in built.stderr
    assert "are these fractions?" in built.stderr
    fix = "set box_units: fraction (--box-units fraction)" if name in ("coco", "lvis") else "CSV"
    assert fix in built.stderr
    code, _, stderr = run("plan", name, *map(str, words), "--output", str(tmp_path / "plan"))
    assert (code, "are these fractions?" in stderr) == (1, True)


@pytest.mark.parametrize("name", IN_PIXELS)
def test_fewer_boxes_that_may_be_fractions_are_a_warning(name: str, tmp_path: Path) -> None:
    words = WRITERS[name](tmp_path / "data", {"a.jpg": fractions_of(name)[:2]})
    built = build(name, *words, output=tmp_path / "out")
    assert built.exit_code == 0, built.stderr
    assert any("its only two boxes lie within 0 to 1" in it for it in built.summary["warnings"])


@pytest.mark.parametrize("name", [*IN_PIXELS, "open-images", "csv", "jsonl", "tfrecord", "yolo"])
def test_one_box_in_pixels_shows_that_small_boxes_are_pixels_and_tables_have_their_rule(
    name: str, tmp_path: Path
) -> None:
    boxes = fractions_of(name)
    if name in IN_PIXELS:
        boxes = [*boxes, [20, 10, 40, 30]]
    words = WRITERS[name](tmp_path / "data", {"a.jpg": boxes})
    built = build(name, *words, output=tmp_path / "out")
    assert built.exit_code == 0, built.stderr
    assert not any("within 0 to 1" in it for it in built.summary["warnings"])


def test_pixels_of_voc_are_counted_before_one_is_taken_off(tmp_path: Path) -> None:
    # The first pixel alone, and two of the first pixels: only the first may be a fraction.
    boxes: Boxes = {"a.jpg": [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 2, 1]]}
    words = WRITERS["voc"](tmp_path / "data", boxes)
    built = build("voc", *words, output=tmp_path / "out")
    assert built.exit_code == 0, built.stderr
    assert in_pixels(built) == [[0, 0, 1, 1]] * 3 + [[0, 0, 2, 1]]
    words = WRITERS["voc"](tmp_path / "zero", {"a.jpg": CORNERS_IN_FRACTIONS})
    built = build("voc", *words, "--coordinates", "as_given", output=tmp_path / "zero_out")
    assert "are these fractions?" in built.stderr

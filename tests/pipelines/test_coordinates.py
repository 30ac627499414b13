"""Boxes with other numbers than their format expects are read right, refused, or named."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.box_files import HEIGHT, WIDTH, WRITERS, Boxes, coco, csv, jsonl, source
from tests.support.builds import Build, build, build_config, write_coco
from tests.support.dataset import run
from tests.support.image_makers import pixels, save, with_orientation
from tests.support.making import vertex, write_lines

PIXELS = [20, 10, 60, 40]


def split_name(format_name: str) -> str:
    return format_name.replace("-", "_")


def in_pixels(built: Build, key: str = "a.jpg", *, split: str = "train") -> list[list[float]]:
    """The boxes of an image, in pixels."""
    (example,) = (it for name, it in built.by_key(split).items() if name.endswith(key))
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
    "keras-txt": ([[60, 40, 20, 10], [20, 40, 60, 10]], [[10, 12, -1, -1]]),
    "open-images": ([[0.3, 0.4, 0.1, 0.1]], [[0.1, 0.12, -1, -1]]),
    "csv": ([[60, 40, 20, 10], [20, 40, 60, 10]], [[10, 12, -1, -1], [-1, -1, -1, -1]]),
    "jsonl": ([[60, 40, 20, 10]], [[10, 12, -1, -1]]),
    "tfrecord": ([[0.3, 0.4, 0.1, 0.1]], [[0.1, 0.12, -1, -1]]),
}


@pytest.fixture(scope="module")
def exchanged_boxes(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """A build of all formats with exchanged corners, each in a split of its own."""
    folder = tmp_path_factory.mktemp("exchanged")
    sources = {}
    for name, (exchanged, missing) in EXCHANGED.items():
        boxes = {"a.jpg": [*exchanged, *missing, *beyond(name)]}
        sources[split_name(name)] = source(name, WRITERS[name](folder / name, boxes))
    built = build_config({"splits": sources}, folder=folder)
    assert built.exit_code == 0, built.stderr
    return built


def beyond(name: str) -> list[list[float]]:
    """Exchanged corners outside of the image."""
    return [[4 * value for value in box] for box in EXCHANGED[name][0]] if name == "csv" else []


@pytest.mark.parametrize("name", EXCHANGED)
def test_corners_in_the_wrong_order_are_exchanged_and_missing_values_are_not(
    name: str, exchanged_boxes: Build
) -> None:
    exchanged, missing = EXCHANGED[name]
    split = split_name(name)
    assert in_pixels(exchanged_boxes, split=split) == [PIXELS] * len(exchanged)
    assert exchanged_boxes.counts(split)["corrections"] == {
        "box_corners_exchanged": len(exchanged),
        "box_without_area_dropped": len(missing) + len(beyond(name)),
    }
    first = next(each for each in exchanged_boxes.corrections() if each["split"] == split)
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


def numbers_in(units: str, *, box_format: str) -> list[float]:
    """The box's numbers, perhaps as fractions of the sides."""
    numbers = NUMBERS[box_format]
    if units != "fraction":
        return [*numbers]
    sides = (HEIGHT, WIDTH) if box_format == "yxyx" else (WIDTH, HEIGHT)
    return [value / side for value, side in zip(numbers, sides * 2, strict=True)]


def test_coco_and_lvis_take_any_four_numbers_that_the_config_names(tmp_path: Path) -> None:
    outline = [20.0, 10, 60, 10, 60, 40, 20, 40]
    sources = {}
    for box_format, units in itertools.product(NUMBERS, ("px", "fraction")):
        numbers, area, polygon = numbers_in(units, box_format=box_format), 1000.0, outline
        if units == "fraction":
            area /= WIDTH * HEIGHT
            polygon = [
                value / side for value, side in zip(outline, (WIDTH, HEIGHT) * 4, strict=True)
            ]
        more = {"area": area, "segmentation": [polygon]}
        words = coco(tmp_path / f"{box_format}_{units}", {"a.jpg": [numbers] * 3}, **more)
        keys = {"box_format": box_format, "box_units": units}
        for name in ("coco", "lvis"):
            sources[f"{name}_{box_format}_{units}"] = source(name, words, **keys)
    built = build_config({"splits": sources, "masks": "png"}, folder=tmp_path)
    assert built.exit_code == 0, built.stderr
    for split in sources:
        assert in_pixels(built, split=split) == [PIXELS] * 3, split
        features = built.by_key(split)["a.jpg"].features
        assert features["image/object/area"] == [pytest.approx(1000)] * 3, split
        for mask in features["image/object/mask"]:
            assert int(pixels(mask).sum()) == 40 * 30, split


def test_an_area_that_is_no_fraction_is_computed_from_the_box(tmp_path: Path) -> None:
    words = coco(tmp_path, {"a.jpg": [[0.1, 0.1, 0.2, 0.3]]}, area=1000)
    built = build("coco", *words, "--box-units", "fraction", output=tmp_path / "out")
    assert built.by_key()["a.jpg"].features["image/object/area"] == [pytest.approx(1200)]


def test_tables_take_any_four_numbers_that_the_config_names(tmp_path: Path) -> None:
    sources = {}
    for box_format, units in itertools.product(NUMBERS, ("", "px", "fraction")):
        numbers = numbers_in(units, box_format=box_format)
        keys = {"box_format": box_format, **({"box_units": units} if units else {})}
        # The names of the columns are those of corners, whatever is in them.
        for name, writer in (("csv", csv), ("jsonl", jsonl)):
            split = f"{name}_{box_format}_{units}"
            sources[split] = source(name, writer(tmp_path / split, {"a.jpg": [numbers]}), **keys)
    built = build_config({"splits": sources}, folder=tmp_path)
    assert built.exit_code == 0, built.stderr
    for split in sources:
        assert in_pixels(built, split=split) == [PIXELS], split


def test_columns_of_sides_are_found_if_the_config_names_them(tmp_path: Path) -> None:
    headers = {
        "edges": ("xywh", "left,top,width,height"),
        "corner": ("xywh", "x,y,w,h"),
        "centre": ("cxcywh", "x_center,y_center,width,height"),
        "short_centre": ("cxcywh", "x,y,w,h"),
    }
    sources = {}
    for split, (box_format, header) in headers.items():
        words = csv(tmp_path / split, {"a.jpg": [NUMBERS[box_format]]}, header=header)
        sources[split] = source("csv", words, box_format=box_format)
    built = build_config({"splits": sources}, folder=tmp_path)
    assert built.exit_code == 0, built.stderr
    for split in sources:
        assert in_pixels(built, split=split) == [PIXELS], split


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
    polygon = outline([20, 10, 60, 40])
    annotation = {"bbox": [20, 10, 40, 30], "area": 1100, "segmentation": polygon, "iscrowd": 0}
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
IN_PIXELS = ("coco", "lvis", "voc", "cvat", "labelme", "keras-txt")


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


def test_fewer_boxes_that_may_be_fractions_are_a_warning(tmp_path: Path) -> None:
    sources = {}
    for name in IN_PIXELS:
        words = WRITERS[name](tmp_path / name, {"a.jpg": fractions_of(name)[:2]})
        sources[split_name(name)] = source(name, words)
    built = build_config({"splits": sources}, folder=tmp_path)
    assert built.exit_code == 0, built.stderr
    assert len(warnings(built, "the only two boxes lie within 0 to 1")) == len(IN_PIXELS)


def test_one_box_in_pixels_shows_that_small_boxes_are_pixels_and_tables_have_their_rule(
    tmp_path: Path,
) -> None:
    sources = {}
    for name in (*IN_PIXELS, "open-images", "csv", "jsonl", "tfrecord", "yolo"):
        boxes = fractions_of(name)
        if name in IN_PIXELS:
            boxes = [*boxes, [20, 10, 40, 30]]
        sources[split_name(name)] = source(name, WRITERS[name](tmp_path / name, {"a.jpg": boxes}))
    built = build_config({"splits": sources}, folder=tmp_path)
    assert built.exit_code == 0, built.stderr
    assert list(built.summary["splits"]) == list(sources)
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


# Another reading of the numbers

# Boxes (xmin, ymin, xmax, ymax) in a picture of 200 x 100 pixels.
DRAWN = [[100, 40, 180, 90], [20, 10, 190, 60], [60, 20, 118, 95], [110, 5, 195, 35]]


def written_as(box_format: str, *, scale: bool = False) -> list[list[float]]:
    """The boxes with other numbers."""
    sides = (WIDTH, HEIGHT) * 2 if scale else (1, 1, 1, 1)
    boxes = []
    for box in DRAWN:
        xmin, ymin, xmax, ymax = (edge / side for edge, side in zip(box, sides, strict=True))
        width, height = xmax - xmin, ymax - ymin
        boxes.append(
            {
                "xywh": [xmin, ymin, width, height],
                "xyxy": [xmin, ymin, xmax, ymax],
                "cxcywh": [xmin + width / 2, ymin + height / 2, width, height],
                "yxyx": [ymin, xmin, ymax, xmax],
            }[box_format]
        )
    return boxes


def warnings(built: Build, text: str = "boxes") -> list[str]:
    return [line for line in built.summary["warnings"] if text in line]


@pytest.mark.parametrize("box_format", ["xyxy", "cxcywh", "yxyx"])
@pytest.mark.parametrize("name", ["coco", "lvis"])
def test_a_warning_names_the_reading_that_puts_all_boxes_into_their_images(
    name: str, box_format: str, tmp_path: Path
) -> None:
    words = coco(tmp_path, {"a.jpg": written_as(box_format)})
    built = build(name, *words, output=tmp_path / "out")
    assert built.exit_code == 0, built.stderr
    (line,) = warnings(built)
    assert "of the 4 boxes leave their image by more than a pixel" in line
    assert (
        "all 4 boxes of these images lie in them: if that is what they are, set "
        f"box_format: {box_format} (--box-format {box_format})"
    ) in line
    right = build(name, *words, "--box-format", box_format, output=tmp_path / "right")
    assert warnings(right) == []
    assert in_pixels(right) == DRAWN


@pytest.mark.parametrize(
    ("name", "box_format", "cause"),
    [
        ("csv", "yxyx", "set box_format: yxyx"),
        ("jsonl", "yxyx", "set box_format: yxyx"),
        ("voc", "yxyx", "read as top, left, bottom and right, all 4 boxes of these images lie in"),
        ("cvat", "yxyx", "correct the files, because this format has no others"),
        ("open-images", "yxyx", ""),
        ("tfrecord", "yxyx", ""),
        ("labelme", "yxyx", "fit the images turned by 90 degrees"),
    ],
)
def test_other_formats_warn_of_another_reading_too(
    name: str, box_format: str, cause: str, tmp_path: Path
) -> None:
    boxes = written_as(box_format, scale=name in ("open-images", "tfrecord"))
    if name in ("open-images", "tfrecord"):
        # Rows and columns of fractions fit either way; these are fractions of one side only.
        boxes = [[edge / WIDTH * 2 for edge in box] for box in DRAWN]
        cause = "of the 4 boxes leave their image by more than a pixel; no other reading"
    words = WRITERS[name](tmp_path / "data", {"a.jpg": boxes})
    built = build(name, *words, output=tmp_path / "out")
    assert built.exit_code == 0, built.stderr
    (line,) = warnings(built)
    assert cause in line


def test_columns_of_corners_that_hold_sides_are_a_warning(tmp_path: Path) -> None:
    # Most of these boxes have their corners in the wrong order, and none leaves its image.
    words = csv(tmp_path / "data", {"a.jpg": written_as("xywh")})
    built = build("csv", *words, output=tmp_path / "out")
    (line,) = warnings(built)
    assert "the corners of 3 of the 4 boxes were exchanged" in line
    assert "set box_format: xywh (--box-format xywh)" in line
    # These are corners in the wrong order, which no other reading puts into their image.
    exchanged = [[xmax, ymax, xmin, ymin] for xmin, ymin, xmax, ymax in DRAWN]
    words = csv(tmp_path / "exchanged", {"a.jpg": exchanged})
    assert warnings(build("csv", *words, output=tmp_path / "exchanged_out")) == []


def test_no_reading_fits_and_few_boxes_show_nothing(tmp_path: Path) -> None:
    beyond = [[100, 40, 180, 300]] * 3
    words = coco(tmp_path / "none", {"a.jpg": beyond})
    (line,) = warnings(build("coco", *words, output=tmp_path / "none_out"))
    assert "no other reading of their numbers puts the boxes into these images" in line
    words = coco(tmp_path / "few", {"a.jpg": beyond[:2]})
    assert warnings(build("coco", *words, output=tmp_path / "few_out")) == []
    # Three boxes are a twentieth of sixty.
    within = [[20, 10, 40, 30]] * 57
    words = coco(tmp_path / "share", {"a.jpg": beyond, "b.jpg": within})
    assert warnings(build("coco", *words, output=tmp_path / "share_out")) == []
    words = coco(tmp_path / "more", {"a.jpg": beyond, "b.jpg": within[1:]})
    assert len(warnings(build("coco", *words, output=tmp_path / "more_out"))) == 1


def test_boxes_over_the_border_by_a_pixel_leave_no_image(tmp_path: Path) -> None:
    words = coco(tmp_path, {"a.jpg": [[-1, -1, 202, 102]] * 3})
    built = build("coco", *words, output=tmp_path / "out")
    assert built.counts()["corrections"] == {"box_clipped": 3}
    assert warnings(built) == []


def test_boxes_over_the_border_by_rounding_are_no_findings(tmp_path: Path) -> None:
    words = coco(tmp_path, {"a.jpg": [[-0.6, 5, 50, 50]]})
    built = build("coco", *words, output=tmp_path / "out")
    assert built.counts()["corrections"] == {"box_clipped_slightly": 1}
    assert [each["kind"] for each in built.summary["findings"]] == []


def outline(box: list[int]) -> list[list[float]]:
    """The polygon of a box that is drawn (xmin, ymin, xmax, ymax)."""
    xmin, ymin, xmax, ymax = box
    return [[xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax]]


@pytest.mark.parametrize("name", ["coco", "lvis"])
def test_boxes_that_disagree_with_their_outlines_are_a_warning(name: str, tmp_path: Path) -> None:
    # Both readings lie in the image, so only the outline shows which one is right.
    small = [30, 20, 60, 40]
    words = coco(tmp_path, {"a.jpg": [small]}, segmentation=outline(small))
    (line,) = warnings(build(name, *words, output=tmp_path / "out"), "polygons")
    assert line == (
        "instances.json: 1 of the first 1 objects with polygons have a box that overlaps with them "
        "by less than half; they agree with box_format: xyxy (--box-format xyxy)"
    )
    right = build(name, *words, "--box-format", "xyxy", output=tmp_path / "right")
    assert warnings(right, "polygons") == []


def test_a_tenth_of_the_boxes_may_disagree_with_their_outlines(tmp_path: Path) -> None:
    boxes = [[10, 10, 30, 20]] * 9
    polygon = outline([10, 10, 40, 30])
    for wrong, expected in ((1, 0), (2, 1)):
        folder = tmp_path / str(wrong)
        words = coco(
            folder, {"a.jpg": [*boxes, *[[100, 50, 20, 10]] * wrong]}, segmentation=polygon
        )
        built = build("coco", *words, output=folder / "out")
        found = warnings(built, "polygons")
        assert len(found) == expected
        assert all("no other box_format agrees" in line for line in found)


def test_outlines_that_cannot_be_read_and_exchanged_corners_disagree_with_nothing(
    tmp_path: Path,
) -> None:
    words = coco(tmp_path, {"a.jpg": [[40, 30, -30, -20]] * 4})
    path = tmp_path / "instances.json"
    document = json.loads(path.read_bytes())
    for annotation, segmentation in zip(
        document["annotations"],
        (
            [[["10", "10"], ["40", "10"], ["40", "30"], ["10", "30"]]],
            {"counts": [0, 100], "size": [HEIGHT, WIDTH]},
            [],
            [[10, 10, 40, 10, 30, 10]],
        ),
        strict=True,
    ):
        annotation["segmentation"] = segmentation
    path.write_text(json.dumps(document))
    assert warnings(build("coco", *words, output=tmp_path / "out"), "polygons") == []


def test_pictures_that_were_turned_without_their_boxes_are_a_warning(tmp_path: Path) -> None:
    words = coco(tmp_path, {"a.jpg": written_as("xywh")})
    upright = Image.open(tmp_path / "images" / "a.jpg")
    stored = upright.transpose(Image.Transpose.ROTATE_90)
    path = tmp_path / "instances.json"
    document = json.loads(path.read_bytes())
    for image in document["images"]:
        del image["width"], image["height"]
    path.write_text(json.dumps(document))
    # With its EXIF orientation, the picture is upright.
    turned = with_orientation(save(stored, "JPEG"), 6)
    for name, data, number in (("exif", turned, 0), ("stripped", save(stored, "JPEG"), 1)):
        (tmp_path / "images" / "a.jpg").write_bytes(data)
        built = build("coco", *words, output=tmp_path / name)
        found = warnings(built, "fit the images turned by 90 degrees")
        assert (built.exit_code, len(found)) == (0, number)


def test_outlines_decide_which_reading_a_warning_may_name(tmp_path: Path) -> None:
    numbers = [150, 10, 190, 60]
    for name, drawn, said in (
        # As corners, these numbers lie in the image; the outline says that they are sides.
        ("sides", [150, 10, 340, 70], "no other reading"),
        ("corners", numbers, "set box_format: xyxy"),
        ("neither", [10, 10, 20, 20], "no other reading"),
    ):
        words = coco(tmp_path / name, {"a.jpg": [numbers] * 3}, segmentation=outline(drawn))
        (line,) = warnings(build("coco", *words, output=tmp_path / f"{name}_out"), "leave their")
        assert said in line
        assert ("box_format" in line) == (name == "corners")

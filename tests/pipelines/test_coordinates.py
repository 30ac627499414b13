"""Boxes with other numbers than their format expects are read right, refused, or named."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from tests.support.box_files import HEIGHT, WIDTH, WRITERS, Boxes, coco, csv, jsonl, source
from tests.support.builds import Build, build, build_config, write_coco
from tests.support.dataset import run
from tests.support.image_makers import pixels, save, with_orientation
from tests.support.making import vertex, write_lines
from tests.support.screens import check_screen

PIXELS = [20, 10, 60, 40]


def in_pixels(built: Build, key: str = "a.jpg", *, split: str = "train") -> list[list[float]]:
    """The boxes of an image, in pixels."""
    (example,) = (it for name, it in built.by_key(split).items() if name.endswith(key))
    boxes = np.array(example.boxes).reshape(-1, 4) * (WIDTH, HEIGHT, WIDTH, HEIGHT)
    written: list[list[float]] = np.round(boxes, 3).tolist()
    return written


def outline(box: Sequence[float]) -> list[list[float]]:
    """The polygon of a box that is drawn (xmin, ymin, xmax, ymax)."""
    xmin, ymin, xmax, ymax = box
    return [[xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax]]


def warnings(built: Build, text: str) -> list[str]:
    return [line for line in built.summary["warnings"] if text in line]


# One build of all that is read

# {box_format: the box 20, 10, 60, 40 in a picture of 200 x 100 pixels}
NUMBERS = {
    "xywh": [20, 10, 40, 30],
    "xyxy": [20, 10, 60, 40],
    "cxcywh": [40, 25, 40, 30],
    "yxyx": [10, 20, 40, 60],
}
# Boxes (xmin, ymin, xmax, ymax) in such a picture.
DRAWN = [[100, 40, 180, 90], [20, 10, 190, 60], [60, 20, 118, 95], [110, 5, 195, 35]]
FRACTIONS = [[0.1, 0.1, 0.2, 0.3], [0.5, 0.5, 0.25, 0.5], [0.25, 0.5, 0.5, 0.5]]
CORNERS_IN_FRACTIONS = [[0.1, 0.1, 0.3, 0.4], [0.5, 0.5, 1, 1], [0, 0.25, 0.5, 0.5]]
IN_PIXELS = ("coco", "lvis", "voc", "cvat", "labelme", "keras-txt")
BEYOND = [[100, 40, 180, 300]] * 3


def numbers_in(units: str, *, box_format: str) -> list[float]:
    """The box's numbers, perhaps as fractions of the sides."""
    numbers = NUMBERS[box_format]
    if units != "fraction":
        return [*numbers]
    sides = (HEIGHT, WIDTH) if box_format == "yxyx" else (WIDTH, HEIGHT)
    return [value / side for value, side in zip(numbers, sides * 2, strict=True)]


def written_as(box_format: str) -> list[list[float]]:
    """The drawn boxes with other numbers."""
    boxes = []
    for xmin, ymin, xmax, ymax in DRAWN:
        written: dict[str, list[float]] = {
            "xywh": [xmin, ymin, xmax - xmin, ymax - ymin],
            "xyxy": [xmin, ymin, xmax, ymax],
            "cxcywh": [(xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin],
            "yxyx": [ymin, xmin, ymax, xmax],
        }
        boxes.append(written[box_format])
    return boxes


def fractions_of(name: str) -> list[list[float]]:
    return FRACTIONS if name in ("coco", "lvis") else CORNERS_IN_FRACTIONS


class Case(NamedTuple):
    """Boxes in a format.

    Attributes:
        name: The format.
        boxes: Those of one picture, or of several.
        keys: Keys of the source.
        more: What else the files say.
    """

    name: str
    boxes: Boxes | list[list[Any]]
    keys: Mapping[str, str] = {}
    more: Mapping[str, Any] = {}

    def write(self, folder: Path) -> dict[str, Any]:
        boxes = self.boxes if isinstance(self.boxes, Mapping) else {"a.jpg": self.boxes}
        words = WRITERS[self.name](folder, boxes, **self.more)
        return source(self.name, words, **self.keys)


def list_cases() -> Iterator[tuple[str, Case]]:
    """Lists all pictures that are built, by the names of their splits."""
    boxes: list[list[Any]]
    more: dict[str, Any]
    # Corners in the wrong order, and missing values (-1), which are not exchanged. The box is
    # always 20, 10, 60, 40. In VOC the pixel 21 is the first one, and 60 the last.
    small, none = [10, 12, -1, -1], [-1, -1, -1, -1]
    corners, fractions = [[60, 40, 20, 10], [20, 40, 60, 10]], [[0.3, 0.4, 0.1, 0.1]]
    far = [[4 * value for value in box] for box in corners]
    exchanged: dict[str, Boxes | list[list[Any]]] = {
        "coco": [[60, 40, -40, -30], [60, 10, -40, 30], small, none],
        "lvis": [[60, 40, -40, -30], small],
        "voc": [[60, 40, 21, 11], [21, 40, 60, 11], small, none],
        "cvat": [[60, 40, 20, 10], [60, 10, 20, 40], small],
        "keras-txt": [*corners, small],
        "open-images": [*fractions, [0.1, 0.12, -1, -1]],
        "csv": [*corners, small, none, *far],
        "jsonl": [corners[0], small],
        "tfrecord": [*fractions, [0.1, 0.12, -1, -1]],
        # It has no order of corners.
        "labelme": corners,
        # Negative sides are refused.
        "yolo": {"a.jpg": [[0.2, 0.25, -0.2, 0.3]], "b.jpg": [[0.2, 0.25, 0.2, 0.3]]},
    }
    for name, wrong_order in exchanged.items():
        yield f"exchanged {name}", Case(name, wrong_order)

    # Tables whose config names the numbers: the columns are named like corners, whatever is in
    # them.
    for box_format, units in itertools.product(NUMBERS, ("", "px", "fraction")):
        numbers = numbers_in(units, box_format=box_format)
        keys = {"box_format": box_format, **({"box_units": units} if units else {})}
        # Lines of JSON share what decides it.
        for name in ("csv",) if units else ("csv", "jsonl"):
            yield f"named {name} {box_format} {units}".rstrip(), Case(name, [numbers], keys)
    for box_format, header in (
        ("xywh", "left,top,width,height"),
        ("xywh", "x,y,w,h"),
        ("cxcywh", "x_center,y_center,width,height"),
        ("cxcywh", "x,y,w,h"),
    ):
        keys, more = {"box_format": box_format}, {"header": header}
        name = f"columns {box_format} {header.replace(',', ' ')}"
        yield name, Case("csv", [NUMBERS[box_format]], keys, more)
    # What the first rows show, and a config that says otherwise.
    yield "units guessed", Case("csv", [[0, 0, 1, 1]])
    yield "units px", Case("csv", [[0, 0, 1, 1]], {"box_units": "px"})
    yield "units fraction", Case("csv", [[0, 0, 1.2, 1]], {"box_units": "fraction"})

    texts = {f"{word}.jpg": [[word, "1", "2", "3"]] for word in ("nan", "inf", "x", "1,5")}
    yield "texts coco", Case("coco", {**texts, "a.jpg": [["20", "10", "40", "30"]]})
    yield "texts jsonl", Case("jsonl", [["20", "10.0", "60.00", 40]])

    # Two boxes may be fractions; one box in pixels shows that small ones are pixels. Other formats
    # have rules of their own.
    for name in (*IN_PIXELS, "open-images", "csv", "jsonl", "tfrecord", "yolo"):
        if name in IN_PIXELS:
            yield f"two small {name}", Case(name, fractions_of(name)[:2])
        pixel = [[20, 10, 40, 30]] if name in IN_PIXELS else []
        yield f"small {name}", Case(name, [*fractions_of(name), *pixel])
    # They are counted before one is taken off: only the first pixel may be a fraction.
    yield "small voc at 1", Case("voc", [[1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 1, 1], [1, 1, 2, 1]])

    # Another reading of the numbers puts all boxes into their images.
    for name, box_format in itertools.product(("coco", "lvis"), ("xyxy", "cxcywh", "yxyx")):
        boxes = written_as(box_format)
        yield f"other {name} {box_format}", Case(name, boxes)
        yield f"right {name} {box_format}", Case(name, boxes, {"box_format": box_format})
    for name in ("csv", "jsonl", "voc", "cvat", "labelme"):
        yield f"other {name} yxyx", Case(name, written_as("yxyx"))
    # Rows and columns of fractions fit either way; these are fractions of one side only.
    for name in ("open-images", "tfrecord"):
        halves = [[edge / WIDTH * 2 for edge in box] for box in DRAWN]
        yield f"other {name}", Case(name, halves)
    # Most of these boxes have their corners in the wrong order, and none leaves its image.
    yield "sides csv", Case("csv", written_as("xywh"))
    # These are corners in the wrong order, which no other reading puts into their image.
    yield "all exchanged csv", Case("csv", [[*box[2:], *box[:2]] for box in DRAWN])

    # No reading fits; two boxes show nothing, and neither do three of sixty.
    within = [[20, 10, 40, 30]] * 57
    yield "beyond", Case("coco", BEYOND)
    yield "beyond few", Case("coco", BEYOND[:2])
    yield "beyond 3 of 60", Case("coco", {"a.jpg": BEYOND, "b.jpg": within})
    yield "beyond 3 of 59", Case("coco", {"a.jpg": BEYOND, "b.jpg": within[1:]})
    yield "beyond by a pixel", Case("coco", [[-1, -1, 202, 102]] * 3)

    # Both readings lie in the image, so only the outline shows which one is right.
    corner = [30, 20, 60, 40]
    more = {"segmentation": outline(corner)}
    # The warnings differ by the number of boxes.
    for name, count in (("coco", 1), ("lvis", 2)):
        right = {"box_format": "xyxy"}
        yield f"outline {name}", Case(name, [corner] * count, {}, more)
        yield f"outline right {name}", Case(name, [corner] * (2 + count), right, more)
    # A tenth of the boxes may disagree with their outlines.
    for wrong in (1, 2):
        boxes = [[10, 10, 30, 20]] * 9 + [[100, 50, 20, 10]] * wrong
        more = {"segmentation": outline([10, 10, 40, 30])}
        yield f"outline not of {wrong}", Case("coco", boxes, {}, more)
    # As corners, these numbers lie in the image; the outline says whether they are sides.
    for what, drawn in {
        "sides": [150, 10, 340, 70],
        "corners": [150, 10, 190, 60],
        "neither": [10, 10, 20, 20],
    }.items():
        more = {"segmentation": outline(drawn)}
        yield f"outline of {what}", Case("coco", [[150, 10, 190, 60]] * 3, {}, more)


# Names of splits have no spaces and hyphens.
NAMES = str.maketrans(" -", "__")


def test_all_that_is_read(tmp_path: Path) -> None:
    """The screen has the boxes of each picture in pixels, then what the build says about them."""
    cases = {name.translate(NAMES): case for name, case in list_cases()}
    splits = {name: case.write(tmp_path / name) for name, case in cases.items()}
    built = build_config({"splits": splits, "rejects": {"max_ratio": 1}}, folder=tmp_path)
    shown = ""
    for name in cases:
        shown += f"--- {name}\n"
        for key in sorted(built.by_key(name)):
            boxes = in_pixels(built, key, split=name)
            unique = {str(box): boxes.count(box) for box in boxes}
            shown += "".join(f"{key} {box} x {count}\n" for box, count in unique.items())
        for what, count in built.counts(name)["corrections"].items():
            shown += f"{what}: {count}\n"
        for reject in built.rejects():
            if reject["split"] == name:
                shown += f"{reject['key']}: {reject['reason']}\n"
    check_screen("boxes", shown + "\n".join(["--- warnings", *warnings(built, "box")]))


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
        # LVIS is read by the same class.
        for name in ("coco", "lvis") if box_format == "xyxy" else ("coco",):
            sources[f"{name}_{box_format}_{units}"] = source(name, words, **keys)
    built = build_config({"splits": sources, "masks": "png"}, folder=tmp_path)
    for split in sources:
        assert in_pixels(built, split=split) == [PIXELS] * 3, split
        features = built.by_key(split)["a.jpg"].features
        assert features["image/object/area"] == [pytest.approx(1000)] * 3, split
        for mask in features["image/object/mask"]:
            assert int(pixels(mask).sum()) == 40 * 30, split


def test_a_key_about_boxes_is_refused_in_a_table_without_boxes(tmp_path: Path) -> None:
    words = csv(tmp_path / "data", {"a.jpg": [[1, 2, 3, 4]]}, header="a,b,c,d")
    for flags in (("--box-format", "xyxy"), ("--box-units", "px")):
        result = run("plan", "csv", *map(str, words), *flags, "--output", str(tmp_path / "out"))
        assert result.exit_code == 1
        assert "the rows have no columns of boxes; take it out" in result.stderr


# Numbers that are texts


def texts(value: object) -> object:
    """The same value with texts in the place of numbers."""
    if isinstance(value, list):
        return [texts(each) for each in value]
    return f"{value:.4f}" if isinstance(value, (int, float)) else value


def write_texts(folder: Path) -> list[str | Path]:
    """Writes a COCO file in which numbers and ids may be texts, and returns the words for it."""
    words = coco(folder, {"a.jpg": [], "b.jpg": []})
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
    write_coco(folder / "instances.json", document)
    return words


def test_numbers_may_be_texts(tmp_path: Path) -> None:
    words = {name: write_texts(tmp_path / name) for name in ("coco", "lvis")}
    folder = tmp_path / "labelme"
    words["labelme"] = WRITERS["labelme"](folder, {"a.jpg": [["20", "10.0", "60.00", "40"]]})
    text = (folder / "a.json").read_text().replace(f'"imageWidth": {WIDTH}', '"imageWidth": "2e2"')
    (folder / "a.json").write_text(text)
    words["jsonl"] = jsonl(tmp_path / "vertex", {"a.jpg": []})
    sides = {"xMin": "0.1", "yMin": "0.1", "xMax": "0.3", "yMax": "0.4"}
    row = vertex("a.jpg", use="training", boundingBoxAnnotations=[{"displayName": "dog", **sides}])
    write_lines(tmp_path / "vertex" / "boxes.jsonl", [row])
    splits = {name: source(name, each) for name, each in words.items()}
    # An area that is no fraction is computed from the box.
    fraction = coco(tmp_path / "area", {"a.jpg": [[0.1, 0.1, 0.2, 0.3]]}, area=1000)
    file = tmp_path / "area" / "instances.json"
    # Another class, because of its id.
    file.write_text(file.read_text().replace("dog", "cow"))
    splits["area"] = source("coco", fraction, box_units="fraction")
    config = {"splits": splits, "masks": "png", "rejects": {"max_ratio": 1}}
    built = build_config(config, folder=tmp_path)

    for split in ("labelme", "jsonl", "area"):
        assert in_pixels(built, split=split) == [PIXELS]
    assert built.by_key("area")["a.jpg"].features["image/object/area"] == [pytest.approx(1200)]
    for split in ("coco", "lvis"):
        assert in_pixels(built, split=split) == [PIXELS] * 2
        assert in_pixels(built, "b.jpg", split=split) == [PIXELS]
        examples = built.by_key(split)
        assert examples["a.jpg"].labels == [("dog", 3), ("cat", 4)]
        assert examples["b.jpg"].labels == [("cat", 4)]
        for key, source_id in (("a.jpg", b"1"), ("b.jpg", b"007")):
            features = examples[key].features
            assert features["image/source_id"] == [source_id]
            assert features["image/object/area"][0] == 1100
            assert int(pixels(features["image/object/mask"][0]).sum()) == 40 * 30
    # Ids keep their text: 7 is not 007.
    assert {each["key"]: each["reason"] for each in built.rejects()} == {
        "image_id=7": "unknown_image_id"
    }
    # Boxes of LabelMe and Vertex AI have no outlines.
    no_outline = {"mask_empty_no_segmentation": 1}
    corrections = [built.counts(split)["corrections"] for split in words]
    assert corrections == [{}, {}, no_outline, no_outline]


def test_a_class_id_with_a_decimal_point_is_the_whole_number(tmp_path: Path) -> None:
    words = csv(tmp_path / "data", {"a.jpg": [[20, 10, 60, 40]], "b.jpg": [[20, 10, 60, 40]]})
    path = tmp_path / "data" / "boxes.csv"
    path.write_text(path.read_text().replace("dog", "3.0", 1).replace("dog", "12"))
    built = build("csv", *words, output=tmp_path / "out")
    assert built.by_key()["a.jpg"].labels == [("3", 3)]
    assert built.by_key()["b.jpg"].labels == [("12", 12)]


# Fractions in the place of pixels


@pytest.mark.parametrize("line", [*IN_PIXELS, "voc --coordinates as_given"])
def test_a_source_whose_boxes_are_all_fractions_is_refused_where_pixels_belong(
    line: str, tmp_path: Path
) -> None:
    name, *flags = line.split()
    # A box without an area says nothing.
    boxes: Boxes = {
        "a.jpg": [*fractions_of(name)[:2], [0, 0, 0, 0]],
        "b.jpg": fractions_of(name)[2:],
    }
    words = [name, *map(str, WRITERS[name](tmp_path / "data", boxes)), *flags]
    fix = "set box_units: fraction (--box-units fraction)" if name in ("coco", "lvis") else "CSV"
    for command in ("plan", "build") if name == "coco" else ("plan",):
        result = run(command, *words, "--output", str(tmp_path / "out"), exit_code=1)
        for said in ("all 3 boxes lie within 0 to 1", "are these fractions?", fix):
            assert said in result.stderr
        assert not (tmp_path / "out" / "dataset_info.json").exists()


# Another reading of the numbers


def test_boxes_over_the_border_by_rounding_are_no_findings(tmp_path: Path) -> None:
    words = coco(tmp_path, {"a.jpg": [[-0.6, 5, 50, 50]]})
    built = build("coco", *words, output=tmp_path / "out")
    assert built.counts()["corrections"] == {"box_clipped_slightly": 1}
    assert [each["kind"] for each in built.summary["findings"]] == []


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

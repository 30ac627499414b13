"""Predictions: what they find, which files are refused, and what is said about the rest."""

from __future__ import annotations

import gzip
import json
import random
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet

from shardbeam.pipelines.cli.commands import PredictedKind
from shardbeam.readers.open.find_findings import strongest_images
from shardbeam.readers.open.stored_dataset import open_dataset
from shardbeam.readers.predictions import prediction_files
from shardbeam.readers.predictions.find_by_predictions import (
    PREDICTED_KINDS,
    Predictions,
    find_by_predictions,
)
from shardbeam.transforms.core.errors import InputError
from tests.readers.report.hostile import HOSTILE_TEXTS
from tests.support.dataset import run
from tests.support.tfrecords import draw_image, make_example, write_tfrecord

Box = Sequence[float]
Row = Mapping[str, Any]

SIDE = 100
IMAGE = draw_image("JPEG", width=SIDE, height=SIDE)
NAMES = {1: "cat", 2: "dog", 3: "owl"}
CAT, DOG = [10, 10, 30, 30], [60, 60, 30, 30]


def example(key: str, *objects: tuple[int, Box], source_id: str = "", crowd: int = -1) -> bytes:
    features: dict[str, object] = {
        "image/encoded": IMAGE,
        "image/format": b"jpeg",
        "image/height": SIDE,
        "image/width": SIDE,
        "image/filename": key.encode(),
        "image/source_id": source_id.encode(),
        "image/object/class/label": [label for label, _ in objects],
        "image/object/class/text": [NAMES[label].encode() for label, _ in objects],
        "image/object/is_crowd": [int(number == crowd) for number in range(len(objects))],
    }
    for name, at in (("xmin", 0), ("ymin", 1)):
        features[f"image/object/bbox/{name}"] = [box[at] / SIDE for _, box in objects]
        name = name.replace("min", "max")
        features[f"image/object/bbox/{name}"] = [
            (box[at] + box[at + 2]) / SIDE for _, box in objects
        ]
    return make_example(features)


def classified(key: str, *labels: int) -> bytes:
    return make_example(
        {
            "image/encoded": IMAGE,
            "image/filename": key.encode(),
            "image/class/label": [*labels],
            "image/class/text": [NAMES[label].encode() for label in labels],
        }
    )


def result(image_id: object, category: object, box: Box, score: float, **more: object) -> Row:
    named = "category" if isinstance(category, str) else "category_id"
    return {"image_id": image_id, named: category, "bbox": [*box], "score": score, **more}


def write(path: Path, *records: bytes, label_map: bool = True) -> Path:
    path.mkdir(exist_ok=True)
    if label_map:
        lines = (f'item {{ id: {number} name: "{name}" }}' for number, name in NAMES.items())
        (path / "label_map.pbtxt").write_text("\n".join(lines))
    write_tfrecord(path / "train.tfrecord", *records)
    return path


def find(folder: Path, results: object, *, split: str | None = None) -> Predictions:
    file = folder.parent / "results.json"
    file.write_text(results if isinstance(results, str) else json.dumps(results))
    return find_by_predictions(open_dataset(str(folder)), uri=str(file), split=split)


def found(predictions: Predictions) -> list[tuple[str, str, str, float]]:
    return [(each.kind, each.label, each.predicted, each.margin) for each in predictions.found]


def test_the_kinds_are_those_of_the_command_line() -> None:
    assert [*PREDICTED_KINDS] == [*typing.get_args(PredictedKind)]


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([(1, CAT, 0.9), (2, DOG, 0.9)], []),
        # Another class, less the score of the label's class there.
        ([(2, CAT, 0.9), (1, CAT, 0.3)], [("likely_wrong_class", "cat", "dog", 0.6)]),
        ([(2, CAT, 0.3), (1, CAT, 0.9)], []),
        # A box that nothing overlaps, once though it is predicted twice.
        (
            [(3, [50, 0, 40, 40], 0.8), (2, [51, 0, 40, 40], 0.7)],
            [("likely_missing_object", "", "owl", 0.8)],
        ),
        # A box of the same class beside the label: IoU 600 / 1,200.
        ([(1, [20, 10, 30, 30], 0.9)], [("badly_placed", "cat", "cat", 0.4)]),
        # One label has one box of its class: the other one may be another object.
        (
            [(1, CAT, 0.9), (1, [30, 30, 30, 30], 0.8)],
            [("likely_missing_object", "", "cat", 0.7412)],
        ),
    ],
)
def test_what_predictions_find(
    results: Sequence[tuple[int, Box, float]],
    expected: Sequence[tuple[str, str, str, float]],
    tmp_path: Path,
) -> None:
    folder = write(tmp_path / "data", example("a.jpg", (1, CAT), (2, DOG), source_id="7"))
    assert found(find(folder, [result(7, *each) for each in results])) == [*expected]


def test_nothing_is_missing_in_a_crowd(tmp_path: Path) -> None:
    objects = (1, [0, 0, 100, 100]), (2, DOG)
    folder = write(tmp_path / "data", example("a.jpg", *objects, crowd=0))
    assert found(find(folder, [result("a.jpg", 1, CAT, 0.9), result("a.jpg", 2, DOG, 0.9)])) == []


@pytest.mark.parametrize("image_id", [12, "12", 12.0, "b/x.jpg", "x", "y/x.png"])
def test_ways_to_name_an_image(image_id: object, tmp_path: Path) -> None:
    others = [example(f"{n}.jpg", (1, CAT), source_id=f"s{n}") for n in range(3)]
    folder = write(tmp_path / "data", example("b/x.jpg", (1, CAT), source_id="12"), *others)
    # A category may be written like the id of an image.
    category = 2.0 if image_id == 12 else 2
    (each,) = find(folder, [result(image_id, category, CAT, 0.9)]).found
    assert (each.key, each.number, each.object) == ("b/x.jpg", 1, 0)


def test_names_of_files_may_be_numbers(tmp_path: Path) -> None:
    records = [example(f"b/{n:06}.jpg", (1, CAT)) for n in (40, 41)]
    (each,) = find(write(tmp_path / "data", *records), [result(41, 2, CAT, 0.9)]).found
    assert each.key == "b/000041.jpg"
    # Without source ids, an export numbers images from 1.
    for n in (2, 1):
        records.append(example(f"b/{n:06}.jpg", (1, CAT)))
    with pytest.raises(InputError, match=r"image '1' may be 'b/000040\.jpg', by its id"):
        find(write(tmp_path / "data", *records), [result(1, 2, CAT, 0.9)])


def test_an_id_that_no_export_gives_shows_that_ids_are_names_of_files(tmp_path: Path) -> None:
    # An export numbers these images from 1 to 12. Ultralytics names 000000.jpg 0.
    keys = [f"{n:06}.jpg" for n in (5, *range(5), *range(6, 12))]
    folder = write(tmp_path / "data", *(example(key, (1, CAT)) for key in keys))
    found = find(folder, [result(n, 1 + (n == 3), CAT, 0.9) for n in range(12)]).found
    assert [each.key for each in found] == ["000003.jpg"]
    # Without it, both are possible.
    with pytest.raises(InputError, match=r"'1' may be '000005\.jpg', .* or '000001\.jpg'"):
        find(folder, [result(n, 1, CAT, 0.9) for n in range(1, 12)])


def test_ids_that_mean_the_same_image_both_ways_are_clear(tmp_path: Path) -> None:
    keys = [f"{n:06}.jpg" for n in range(1, 12)]
    folder = write(tmp_path / "data", *(example(key, (1, CAT)) for key in keys))
    results = [result(n, 1 + (n == 3), CAT, 0.9) for n in range(1, 12)]
    # Of an image that is not in the dataset.
    results.append(result(77, 1, CAT, 0.9))
    assert [each.key for each in find(folder, results).found] == ["000003.jpg"]


def test_boxes_that_fit_only_as_corners(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", *(example(f"{n}.jpg", (1, CAT)) for n in range(4)))
    corners = [[10, 10, 40, 40], [10, 20, 30, 40], [60, 60, 90, 90], [5, 5, 9, 9]]
    results = [result(f"{n}.jpg", 1, box, 0.9) for n, box in enumerate(corners)]
    assert find(folder, results).notes[-1] == (
        "1 of 4 boxes reach beyond their pictures, such as (60.0, 60.0, 90.0, 90.0) in 100x100, "
        "and all fit as corners, [left, top, right, bottom]; if they are, write [x, y, width, "
        "height]"
    )
    # A box that is not the corners of anything.
    results.append(result("0.jpg", 1, [50, 50, 20, 20], 0.9))
    assert "corners" not in " ".join(find(folder, results).notes)
    # Most of them.
    most = [result("0.jpg", 1, [60, 60, 90, 90], 0.9)]
    with pytest.raises(InputError, match=r"and all fit as corners, .*; expected \[x, y, width"):
        find(folder, most)


def test_ids_that_two_images_have_need_a_split(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", example("a.jpg", (1, CAT), source_id="1"))
    write_tfrecord(folder / "validation.tfrecord", example("b.jpg", (1, CAT), source_id="1"))
    results = [result(1, "dog", CAT, 0.9)]
    with pytest.raises(InputError, match=r"'1' is the source id of several .* with --split"):
        find(folder, results)
    (each,) = find(folder, results, split="validation").found
    assert each.key == "b.jpg"


GOOD = result("a.jpg", 1, CAT, 0.9)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is empty; expected COCO results"),
        ("[]", "holds no predictions"),
        ("{}", "Expected `array`, got `object`"),
        (json.dumps([GOOD])[:-9], "Input data was truncated"),
        (json.dumps([GOOD, {**GOOD, "bbox": [1, 2, None, 4]}]), r"at `result 2.bbox\[2\]`"),
        (json.dumps([GOOD, {**GOOD, "bbox": [1, 2, 3]}]), "of length 4"),
        (json.dumps([GOOD, {**GOOD, "score": float("nan")}]), "byte .*JSON has no NaN"),
        (json.dumps([GOOD]).replace("0.9", "1e400"), "out of range"),
        (json.dumps([GOOD]).replace("0.9", "[" * 100_000), "result 1.score|recursion|deep"),
        (json.dumps([GOOD, {**GOOD, "x": "#"}]).replace('"#"', "[" * 10_000), "recursion|deep"),
        (json.dumps([{**GOOD, "image_id": 10**30}]), "0 of 1 predictions|out of range"),
        (json.dumps([{**GOOD, "category_id": None}]), "result 1: has neither a category_id nor"),
        (json.dumps([{**GOOD, "score": 87.0}]), "result 1: its score is 87; expected a prob"),
        (json.dumps([{**GOOD, "score": -0.1}]), "its score is -0.1"),
        (json.dumps([{**GOOD, "category_id": 77}]), r"none of its categories .*: 77; .* 1, 2, 3"),
        (json.dumps([{**GOOD, "category": "Cat"}]), "'Cat'; expected ids"),
        (json.dumps([{**GOOD, "bbox": [0.1, 0.1, 0.3, 0.3]}]), "its boxes are fractions"),
        (json.dumps([{**GOOD, "bbox": [60, 60, 90, 90]}]), r"reach beyond.*\(60.0, .* in 100x100"),
        (json.dumps([{**GOOD, "image_id": "z"}]), r"0 of 1 predictions .* are 'z'; .* 'a\.jpg'"),
        (json.dumps([{**GOOD, "image_id": "\x1b[2J"}]), r"'\\x1b\[2J'"),
        (
            json.dumps([GOOD, GOOD]).replace('"score"', '"score": 0.1, "score"', 1),
            "after byte 0: the key 'score' is given twice in one result",
        ),
    ],
)
def test_results_that_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", example("a.jpg", (1, CAT), (2, DOG)))
    with pytest.raises(InputError, match=problem):
        find(folder, text)


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", example("a.jpg", (1, CAT)), example("b.jpg", (2, DOG)))
    results = [
        *[result("a.jpg", 1, CAT, 0.9)] * 20,
        result("a.jpg", 1, CAT, 0.01),
        result("a.jpg", 1, [1, 1, 0, 5], 0.9),
        result("a.jpg", 1, [1, 1, -4, 5], 0.9),
        result("a.jpg", 77, CAT, 0.9, segmentation={"counts": "]},{["}),
        result("a.jpg", 1, [500, 1, 10, 10], 0.9),
        result("z.jpg", 1, CAT, 0.9),
    ]
    assert find(folder, results).notes == [
        "predictions for 1 of 2 images",
        "not used: 1 detection with a score below 0.05",
        "not used: 2 detections with a box without area",
        "not used: 1 detection in images that are not in the dataset",
        "not used: 1 detection of classes that the dataset does not have (77)",
        "not used: 1 detection outside of their pictures",
    ]
    (note,) = find(folder, [result("b.jpg", 1, DOG, 0.9)]).notes[1:]
    assert "another class to 1 of 1 objects: if its ids are not those" in note


def test_a_file_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    texts = '"', "\\", "},", '"},{"', "]", "[{},{}]"
    results = [
        result(str(n), n % 5, [n, 0, 1, 1], 0.5, s=rng.choice(texts), parts=[{"a": 1}, {"b": [2]}])
        for n in range(300)
    ]
    file = tmp_path / "results.json"
    for indent in (None, 1):
        file.write_text("\ufeff" + json.dumps(results, indent=indent))
        for size in (500, 777, 1 << 20):
            monkeypatch.setattr(prediction_files, "PIECE_BYTES", size)
            read = prediction_files.read_detections(str(file))
            assert read.ids == [str(n) for n in range(300)]
            assert read.rows["box"][:, 0].tolist() == [*range(300)]


def columns(**more: object) -> dict[str, Any]:
    named = {"key": ["a", "b"], "cat": [0.2, 0.9], "dog": [0.7, 0.1], "owl": [0.1, 0.0]}
    return {**named, **more}


def find_classes(folder: Path, table: Mapping[str, Any], *, extension: str) -> Predictions:
    file = folder.parent / f"table.{extension}"
    if extension == "parquet":
        parquet.write_table(pa.table(dict(table)), file)
    else:
        rows = zip(*table.values(), strict=True)
        lines = [",".join(table), *(",".join(map(str, row)) for row in rows)]
        file.write_text("\n".join(lines).replace("None", ""))
    return find_by_predictions(open_dataset(str(folder)), uri=str(file))


@pytest.mark.parametrize("extension", ["csv", "parquet"])
def test_class_probabilities(extension: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "one", classified("a", 1), classified("b", 1))
    predictions = find_classes(folder, columns(fold=[1, 2]), extension=extension)
    assert found(predictions) == [("likely_wrong_class", "cat", "dog", 0.5)]
    assert predictions.notes[1:] == ["columns that are no classes are not read: 'fold'"]
    # Of several classes, the one that the model believes least.
    folder = write(tmp_path / "many", classified("a", 1, 2), classified("b", 3))
    table = columns(cat=[0.9, 0.1], dog=[0.2, 0.8], owl=[0.6, 0.9])
    assert found(find_classes(folder, table, extension=extension)) == [
        ("likely_wrong_class", "dog", "owl", 0.4)
    ]
    for more, problem in (
        ({"key": ["a", "a"]}, "row 2: the key 'a' is in an earlier row"),
        ({"key": ["a", None]}, "row 2: has no key"),
        ({"key": ["x", "y"]}, "0 of 2 predictions belong"),
        ({"dog": [0.1, float("nan")]}, "row 2, column 'dog': expected a probability.*got nan"),
        ({"dog": [0.1, None]}, "row 2, column 'dog'"),
        ({"dog": [0.1, -3.0]}, "are these logits"),
        ({"dog": ["0.1", "high"]}, "table that can be read"),
    ):
        with pytest.raises(InputError, match=problem):
            find_classes(folder, columns(**more), extension=extension)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Empty CSV"),
        ("key,cat,dog,owl\n", "holds no predictions"),
        ("key,cat,cat,dog,owl\na,1,0,0,0\n", "has the column 'cat' twice"),
        ("name,cat,dog,owl\na,1,0,0\n", "no column with the keys of images"),
        ("key,cat,dogs,owl\na,1,0,0\n", "no column for the class 'dog'; did you mean 'dogs'"),
        ("key,cat,dog,owl\na,0.9,0.9,0.9\n", "row 1: its probabilities add up to 2.7"),
        ("key,cat,dog,owl\na,1,0\n", "Expected 4 columns, got 3"),
        ("key,cat,dog,owl\na,1e400,0,0\n", "got inf"),
        ("key,cat,dog,owl\na,\0,0,0\n", "table that can be read"),
    ],
)
def test_tables_that_are_refused(text: str, problem: str, tmp_path: Path) -> None:
    folder = write(tmp_path / "data", classified("a", 1))
    file = tmp_path / "table.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=problem):
        find_by_predictions(open_dataset(str(folder)), uri=str(file))


@pytest.mark.parametrize(
    ("encode", "problem"),
    [
        (gzip.compress, "compressed with gzip: unpack it first"),
        (lambda data: data.decode().encode("utf-16"), "UTF-16 text: save it as UTF-8"),
        (lambda data: b"PK\x03\x04" + data, "a zip archive: unpack it first"),
    ],
)
def test_files_that_are_no_utf8_text(
    encode: Callable[[bytes], bytes], problem: str, tmp_path: Path
) -> None:
    with_objects = write(tmp_path / "objects", example("a.jpg", (1, CAT)))
    with_classes = write(tmp_path / "classes", classified("a", 1))
    for folder, name, text in (
        (with_objects, "results.json", json.dumps([GOOD])),
        (with_classes, "table.csv", "key,cat,dog,owl\na,1,0,0\n"),
    ):
        (tmp_path / name).write_bytes(encode(text.encode()))
        with pytest.raises(InputError, match=rf"{name}: the file is .*{problem}"):
            find_by_predictions(open_dataset(str(folder)), uri=str(tmp_path / name))


def test_a_table_may_begin_with_a_class_in_angle_brackets(tmp_path: Path) -> None:
    file = tmp_path / "table.csv"

    def read(text: str) -> Iterator[Any]:
        file.write_text(text, encoding="utf-8")
        table = prediction_files.ClassTable(str(file), classes=["<none>"])
        return table.probabilities(one_class=False)

    (values,) = read("<none>,key\n0.25,a\n")
    assert values.tolist() == [[0.25]]
    with pytest.raises(InputError, match=r"no CSV table that can be read: .*many"):
        list(read("<none>,key\nmany,a\n"))
    with pytest.raises(InputError, match="HTML or XML"):
        read("<!doctype html>\n<p>Not found</p>\n")


def test_predictions_that_do_not_fit_the_dataset(tmp_path: Path) -> None:
    folder = write(tmp_path / "data", classified("a", 1))
    for name, problem in (
        ("results.json", "has no objects with boxes; for classes"),
        ("results.txt", "expected COCO results"),
        ("missing.csv", "no such file"),
    ):
        with pytest.raises(InputError, match=problem):
            find_by_predictions(open_dataset(str(folder)), uri=str(tmp_path / name))
    objects = open_dataset(str(write(tmp_path / "objects", example("a", (1, CAT)))))
    with pytest.raises(InputError, match="no image has a class; for objects"):
        find_by_predictions(objects, uri=str(tmp_path / "table.csv"))
    with pytest.raises(InputError, match=r"missing.json: no such file"):
        find_by_predictions(objects, uri=str(tmp_path / "missing.json"))


def simulate(
    truth: Mapping[str, Sequence[tuple[int, Box]]], *, rng: random.Random
) -> Iterator[Row]:
    """Yields what a good detector sees: 97 % of the objects, 3 % beside them, some of nothing."""
    for key, objects in truth.items():
        for label, box in objects:
            other = rng.choice([each for each in NAMES if each != label])
            score = rng.betavariate(8, 1.5)
            is_right = rng.random() < 0.97
            shaken = [side + rng.gauss(0, 0.03) * 30 for side in box]
            if rng.random() < 0.97:
                yield result(key, label if is_right else other, shaken, score)
                yield result(key, other if is_right else label, shaken, (1 - score) * 0.6)
        if rng.random() < 0.2:
            yield result(key, 1, [0, 80, 20, 20], rng.betavariate(1.2, 4))


def test_a_good_detector_finds_what_was_planted(tmp_path: Path) -> None:
    rng = random.Random(0)
    truth = {f"{n}.jpg": [(rng.choice([*NAMES]), box) for box in (CAT, DOG)] for n in range(200)}
    given = {key: [*objects] for key, objects in truth.items()}
    planted = {kind: rng.sample([*truth], 9) for kind in PREDICTED_KINDS}
    for key in planted["likely_wrong_class"]:
        label, box = given[key][0]
        given[key][0] = label % 3 + 1, box
    for key in planted["likely_missing_object"]:
        del given[key][1]
    for key in planted["badly_placed"]:
        label, (x, y, *size) = given[key][0]
        given[key][0] = label, [x + 10, y + 10, *size]
    records = [example(key, *objects) for key, objects in given.items()]
    predictions = find(write(tmp_path / "data", *records), [*simulate(truth, rng=rng)])
    for kind, keys in planted.items():
        of_kind = [each for each in predictions.found if each.kind == kind]
        first = {each.key for each in strongest_images(iter(of_kind), limit=20)}
        assert len(first & {*keys}) >= 8, kind


def test_the_commands_show_them(tmp_path: Path) -> None:
    texts = HOSTILE_TEXTS[:12]
    records = [example(f"{n}{text[:200]}.jpg", (1, CAT)) for n, text in enumerate(texts)]
    folder = write(tmp_path / "data", *records)
    results = [
        each
        for n, text in enumerate(texts)
        for each in (
            result(f"{n}{text[:200]}.jpg", 2, CAT, 0.9),
            result(f"{n}{text[:200]}.jpg", "owl", DOG, 0.8),
            result(f"{n}{text[:200]}.jpg", text, DOG, 0.8),
        )
    ]
    file = tmp_path / "results.json"
    file.write_text(json.dumps(results))
    words = "--predictions", str(file)
    page = tmp_path / "page.html"
    run("report", str(folder), "--output", str(page), *words, exit_code=0)
    text = page.read_text(encoding="utf-8")
    assert text.count('<li class="item" id="m') == 2 * len(texts)
    assert "label: cat" in text
    assert "model: dog 90%" in text
    section = text.partition('<section id="predictions"')[2].partition("</section>")[0]
    for hostile in texts:
        assert hostile not in section or "<" not in hostile
    again = tmp_path / "again.html"
    assert run("report", str(folder), "--output", str(again), *words).exit_code == 0
    assert again.read_bytes() == page.read_bytes()

    shown = run("show", str(folder), "--findings", "likely_wrong_class", *words, "--json")
    rows = json.loads(shown.stdout)["findings"]
    assert [each["margin"] for each in rows] == [0.9] * len(texts)
    assert rows[0]["label_box"] == CAT
    table = run("show", str(folder), "--findings", *words, "--limit", "3").stdout
    assert table.count("owl 0.80") == 3
    assert "\x1b" not in table
    keys = run("show", str(folder), "--findings", *words, "--all").stdout.splitlines()
    assert len(keys) == len(texts)
    for wrong, problem in (
        (("--findings", "thin_box", *words), "--predictions: they show likely_wrong_class"),
        (("--findings", "badly_placed"), "--findings badly_placed: only together with --pred"),
        (words, "--predictions: only together with --findings"),
    ):
        assert problem in run("show", str(folder), *wrong).stderr
    wrong_split = run("report", str(folder), "--output", str(page), "--split", "train")
    assert "--split: only together with --predictions" in wrong_split.stderr

"""Label Studio's JSON export."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ImageAnnotations, ObjectAnnotation
from shardbeam.transforms.examples.geometry.segmentation import draw_segmentation
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.label_studio.label_studio import LabelStudioFormat
from shardbeam.transforms.formats.label_studio.regions import decode_brush
from shardbeam.transforms.formats.testing import FormatReport, check_format
from shardbeam.transforms.storage import limits
from tests.support.label_studio_files import encode_brush, region, task

SIZE = (200, 100)
BOX = region("rectangle", "cat", x=10, y=20, width=30, height=40)


def read(
    folder: Path,
    *tasks: object,
    images: Sequence[str] = ("a.jpg",),
    **keys: Any,  # noqa: ANN401
) -> FormatReport:
    """Writes images and a file of tasks, or its content, and reads them."""
    root = folder / "images"
    for name in images:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    content = tasks[0] if isinstance(tasks[0], bytes) else json.dumps(tasks).encode()
    (folder / "e.json").write_bytes(content)
    return check_format(
        LabelStudioFormat(images=str(root), annotations=[str(folder / "e.json")], **keys)
    )


def read_one(folder: Path, *results: object, **keys: Any) -> ImageAnnotations:  # noqa: ANN401
    return read(folder, task("a.jpg", *results), **keys).annotations["a.jpg"]


def rejected(folder: Path, *tasks: object, **keys: Any) -> list[str]:  # noqa: ANN401
    report = read(folder, *tasks, **keys)
    return [f"{it.key}: {it.reason.value}: {it.detail}" for it in report.rejects]


# Shapes


def test_coordinates_are_percent_of_the_sides(tmp_path: Path) -> None:
    found = read_one(tmp_path, BOX, region("rectangle", "dog", x="50", y=0, width=50.0, height=1))
    assert (found.width, found.height, found.normalized) == (*SIZE, False)
    assert [(item.label, item.bbox) for item in found.objects] == [
        ("cat", (20, 20, 80, 60)),
        ("dog", (100, 0, 200, 1)),
    ]


def test_a_box_is_turned_clockwise_about_its_top_left_corner_in_pixels(tmp_path: Path) -> None:
    for rotation in (90, 450, -270):
        turned = region("rectangle", "cat", x=50, y=20, width=10, height=40, rotation=rotation)
        found = read_one(tmp_path, turned, _masks=True)
        (item,) = found.objects
        # 20 to the right and 40 down become 20 down and 40 to the left.
        assert item.bbox == pytest.approx((60, 20, 100, 40))
        assert item.area == 800
        (outline,) = json.loads(item.segmentation)
        assert outline == pytest.approx([100, 20, 100, 40, 60, 40, 60, 20])
        assert found.corrections == {"box_turned": 1}


def test_a_turned_box_without_a_side_stays_a_line(tmp_path: Path) -> None:
    line = region("rectangle", "cat", x=50, y=20, width=10, height=0, rotation=45)
    (item,) = read_one(tmp_path, line).objects
    assert item.bbox == (100, 20, 120, 20)


def test_ellipses_turn_about_their_centre(tmp_path: Path) -> None:
    value = {"x": 50, "y": 50, "radiusX": 10, "radiusY": 10}
    for rotation, box in ((0, (80, 40, 120, 60)), (90, (90, 30, 110, 70))):
        found = read_one(tmp_path, region("ellipse", "cat", **value, rotation=rotation))
        assert found.objects[0].bbox == pytest.approx(box, abs=0.2)
        assert found.objects[0].area == pytest.approx(math.pi * 200)


def test_polygons_need_three_points(tmp_path: Path) -> None:
    triangle = region("polygon", "cat", points=[[10, 10], [20, 10], [10, 50]], closed=True)
    found = read_one(tmp_path, triangle, region("polygon", "dog", points=[[1, 1]]), _masks=True)
    assert [item.bbox for item in found.objects] == [(20, 10, 40, 50)]
    assert json.loads(found.objects[0].segmentation) == [[20, 10, 40, 10, 20, 50]]
    assert found.lost == {"dog": {"polygon": 1}}


def test_without_a_size_coordinates_are_fractions_and_need_no_turning(tmp_path: Path) -> None:
    bare = {key: value for key, value in BOX.items() if not key.startswith("original")}
    found = read_one(tmp_path, bare)
    assert found.normalized
    assert found.objects[0].bbox == pytest.approx((0.1, 0.2, 0.4, 0.6))
    turned = bare | {"value": bare["value"] | {"rotation": 5}}
    (reject,) = rejected(tmp_path, task("a.jpg", turned))
    assert "a turned region needs original_width and original_height" in reject


def test_a_region_of_separate_tags_is_one_object(tmp_path: Path) -> None:
    value = BOX["value"]
    bare = {key: each for key, each in value.items() if key != "rectanglelabels"}
    both = (
        BOX | {"type": "rectangle", "value": bare, "id": "r"},
        BOX | {"type": "labels", "value": bare | {"labels": ["cat"]}, "id": "r"},
        BOX | {"type": "choices", "value": bare | {"choices": ["blurred"]}, "id": "r"},
    )
    found = read_one(tmp_path, *both)
    assert [(item.label, item.bbox) for item in found.objects] == [("cat", (20, 20, 80, 60))]
    assert (found.labels, found.corrections) == ((), {"key_not_carried_over": 1})


def test_what_is_no_region_is_counted(tmp_path: Path) -> None:
    relation = {"type": "relation", "from_id": "a", "to_id": "b", "direction": "right"}
    text = {"type": "textarea", "value": {"text": ["x"]}, "from_name": "t"}
    found = read_one(tmp_path, BOX, relation, text)
    assert found.corrections == {"key_not_carried_over": 2}
    changes = [before for before, _ in found.changes["key_not_carried_over"]]
    assert changes == ["relation", "textarea"]


def test_a_region_without_a_label_is_lost(tmp_path: Path) -> None:
    found = read_one(tmp_path, BOX, BOX | {"value": BOX["value"] | {"rectanglelabels": []}})
    assert len(found.objects) == 1
    assert found.corrections == {"object_of_unknown_category_dropped": 1}


@pytest.mark.parametrize("tag", ["vector", "bitmask", "keypoint"])
def test_other_shapes_are_lost_objects(tmp_path: Path, tag: str) -> None:
    # A real export has keypoints with a height.
    value: dict[str, Any] = {"x": 1, "y": 1, "height": 2} if tag == "keypoint" else {"vertices": []}
    found = read_one(tmp_path, BOX, region(tag, "nose", **value))
    assert found.lost == {"nose": {tag: 1}}


# Masks


def draw(item: ObjectAnnotation, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    crop = draw_segmentation(
        item.segmentation, frame=size, extent=size, box=item.bbox, corrections=Corrections()
    )
    assert crop is not None
    return crop.whole(width=size[0], height=size[1])


@given(
    width=st.integers(1, 9),
    height=st.integers(1, 9),
    seed=st.integers(0, 2**32),
    runs=st.tuples(*[st.integers(1, 16)] * 4),
    share=st.floats(0, 1),
)
def test_brushes_hold_the_pixels_that_an_encoder_of_its_own_wrote(
    width: int, height: int, seed: int, runs: tuple[int, ...], share: float
) -> None:
    source = random.Random(seed)
    pixels = [
        [0, 0, 0, 0] if source.random() < share else [source.randrange(256) for _ in range(4)]
        for _ in range(width * height)
    ]
    data = encode_brush([value for pixel in pixels for value in pixel], lengths=runs, source=source)
    found = decode_brush(bytes(data), size=(width, height))
    assert found.tolist() == np.reshape([int(it[3] > 0) for it in pixels], (height, width)).tolist()


def test_brushes_are_masks_and_boxes_around_them(tmp_path: Path) -> None:
    mask = np.zeros((100, 200), np.uint8)
    mask[10:30, 50:90] = 1
    data = encode_brush([255 * on for on in mask.ravel().tolist() for _ in range(4)])
    found = read_one(tmp_path, region("brush", "cat", format="rle", rle=data), _masks=True)
    (item,) = found.objects
    assert (item.bbox, item.area) == ((50, 10, 90, 30), 800)
    assert np.array_equal(draw(item, SIZE), mask)
    assert read_one(tmp_path, region("brush", "cat", rle=data)).objects[0].segmentation == b""


def test_a_brush_without_pixels_is_lost(tmp_path: Path) -> None:
    empty = region("brush", "cat", rle=encode_brush([0] * 80_000))
    for brush in (empty, region("brush", "cat", rle=[])):
        assert read_one(tmp_path, BOX, brush).lost == {"cat": {"brush": 1}}


GOOD = encode_brush([9] * 80_000)


@pytest.mark.parametrize(
    ("rle", "problem"),
    [
        ([0], "the mask ends in the middle"),
        (GOOD[:-2], "the mask ends in the middle"),
        (
            [255, 255, 255, 255, *GOOD[4:]],
            "4,294,967,295 values are no mask",
        ),
        ([0, 0, 0, 4, *GOOD[4:]], "4 values are no mask"),
        ([*GOOD[:4], 255, *GOOD[5:]], "values of 32 bits"),
        (7, "expected a list of numbers from 0 to 255"),
        ([256], "expected a list of numbers from 0 to 255"),
        ([1.5], "expected a list of numbers from 0 to 255"),
        ("AAEC", "expected a list of numbers from 0 to 255"),
    ],
)
def test_a_damaged_brush_rejects_its_image(tmp_path: Path, rle: object, problem: str) -> None:
    (reject,) = rejected(tmp_path, task("a.jpg", BOX, region("brush", "cat", rle=rle)))
    assert reject.startswith("a.jpg: annotation_malformed: e.json: $[0]: rle: ")
    assert problem in reject


def test_a_run_beyond_the_end_is_refused() -> None:
    # One run of two values, where one pixel has four: 4 values of 8 bits, counts of 16 bits.
    bits = f"{4:032b}{7:05b}{'1111' * 4}1{0:02b}{65_535:016b}{1:08b}"
    data = bytes(int(bits[at : at + 8].ljust(8, "0"), 2) for at in range(0, len(bits), 8))
    with pytest.raises(ValueError, match="more values than it says"):
        decode_brush(data, size=(1, 1))


# Choices, keypoints


def choice(*names: object, tag: str = "c") -> dict[str, Any]:
    return {"type": "choices", "from_name": tag, "to_name": "i", "value": {"choices": [*names]}}


def test_choices_are_labels(tmp_path: Path) -> None:
    tasks = (task("a.jpg", choice("cat", "dog")), task("b.jpg", choice("cat")), task("c.jpg"))
    report = read(tmp_path, *tasks, images=["a.jpg", "b.jpg", "c.jpg"])
    labels = {key: found.labels for key, found in report.annotations.items()}
    assert labels == {"a.jpg": ("cat", "dog"), "b.jpg": ("cat",), "c.jpg": ()}


def test_choices_of_several_tags_must_be_told_apart(tmp_path: Path) -> None:
    tasks = (task("a.jpg", choice("cat"), choice("yes", tag="blurred")),)
    with pytest.raises(InputError, match=r"choices of several tags: blurred, c: name the one .*"):
        read(tmp_path, *tasks)
    assert read(tmp_path, *tasks, choices="c").annotations["a.jpg"].labels == ("cat",)


def test_keypoints_belong_to_the_region_above_them(tmp_path: Path) -> None:
    box = BOX | {"id": "b"}
    nose = region("keypoint", "nose", x=10, y=50) | {"parentID": "b"}
    tail = region("keypoint", "tail", x=1, y=1) | {"parentID": "b"}
    loose = region("keypoint", "nose", x=1, y=1)
    found = read_one(tmp_path, nose, box, loose, nose, tail, keypoints=["ear", "nose"])
    assert found.objects[0].keypoints == (0, 0, 0, 20, 50, 2)
    assert found.corrections == {
        "keypoint_in_no_object_dropped": 1,
        "keypoint_repeated_dropped": 1,
        "object_without_box_dropped": 1,
    }
    assert Kind.KEYPOINTS not in LabelStudioFormat(images="i", annotations=["a"]).kinds
    with pytest.raises(Problem, match="each once"):
        LabelStudioFormat(images="i", annotations=["a"], keypoints=["a", "a"])


# Annotations of a task


def test_tasks_that_nobody_has_annotated_are_no_negatives(tmp_path: Path) -> None:
    guess = {"predictions": [{"result": [BOX]}]}
    tasks = (
        task("none.jpg") | {"annotations": []} | guess,
        task("skipped.jpg", BOX, was_cancelled=True),
        task("empty.jpg"),
        {"id": 1, "data": {"image": "old.jpg"}, "completions": [{"result": [BOX]}]},
        {"data": {"image": "oldskip.jpg"}, "completions": [{"result": [], "skipped": True}]},
    )
    names = ["none.jpg", "skipped.jpg", "empty.jpg", "old.jpg", "oldskip.jpg"]
    report = read(tmp_path, *tasks, images=names)
    assert {key: len(found.objects) for key, found in report.annotations.items()} == {
        "empty.jpg": 0,
        "old.jpg": 1,
    }
    assert report.excluded == {
        "discarded": 2,
        "unannotated": 1,
    }


def test_several_annotations_of_a_task_are_refused_unless_the_first_counts(tmp_path: Path) -> None:
    second = {"result": [], "was_cancelled": False}
    both = task("a.jpg", BOX)
    both["annotations"] += [second, {"result": [BOX, BOX], "was_cancelled": True}]
    (reject,) = rejected(tmp_path, both)
    assert "$[0]: 2 annotations of one task: set annotator to first" in reject
    assert len(read(tmp_path, both, annotator="first").annotations["a.jpg"].objects) == 1


def test_a_task_that_is_there_twice(tmp_path: Path) -> None:
    assert rejected(tmp_path, task("a.jpg", BOX), task("a.jpg", BOX)) == []
    (root, file) = (tmp_path / "images", tmp_path / "e.json")
    file.write_text(json.dumps([task("a.jpg", BOX), task("a.jpg")]))
    report = check_format(LabelStudioFormat(images=str(root), annotations=[str(file)]))
    assert [it.reason.value for it in report.rejects] == ["duplicate_key"]


# Names of images


@pytest.mark.parametrize(
    ("image", "name", "match"),
    [
        ("/data/upload/3/1f2e3d4c-a.jpg", "1f2e3d4c-a.jpg", "path"),
        ("/data/upload/3/1f2e3d4c-a.jpg", "a.jpg", "path"),
        ("/data/upload/3/1f2e3d4c-a.jpg", "deep/A.png", "name"),
        ("/data/upload/1f2e3d4c-a%20b.jpg", "a b.jpg", "path"),
        ("http://localhost:8080/data/upload/3/1f2e3d4c-a.jpg?x=1", "a.jpg", "path"),
        ("/data/local-files/?d=set/a%20b.jpg", "set/a b.jpg", "path"),
        ("/data/local-files/?d=set%5Ca.jpg", "set/a.jpg", "path"),
        ("s3://bucket/set/a.jpg", "set/a.jpg", "path"),
        ("gs://bucket/set/a.jpg", "set/a.jpg", "suffix"),
        ("https://example.org/x/a.jpg?token=1", "x/a.jpg", "path"),
        ("set/100%.jpg", "set/100%.jpg", "path"),
        ("C:\\set\\a.jpg", "a.jpg", "name"),
    ],
)
def test_images_are_joined_by_what_is_known_of_their_names(
    tmp_path: Path,
    image: str,
    name: str,
    match: Any,  # noqa: ANN401
) -> None:
    report = read(tmp_path, task(image, BOX), images=[name], match=match)
    assert (list(report.annotations), report.rejects) == ([name], ())


def test_uploads_of_one_name_stay_apart(tmp_path: Path) -> None:
    tasks = [task(f"/data/upload/1/{it}2345678-a.jpg", *[BOX] * it) for it in (1, 2)]
    names = ["12345678-a.jpg", "22345678-a.jpg", "a.jpg"]
    report = read(tmp_path, *tasks, images=names)
    assert {key: len(found.objects) for key, found in report.annotations.items()} == {
        "12345678-a.jpg": 1,
        "22345678-a.jpg": 2,
    }
    (tmp_path / "bare").mkdir()
    report = read(tmp_path / "bare", *tasks, images=["a.jpg"])
    assert [it.reason.value for it in report.rejects] == ["duplicate_key"]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        ({"image": "a.jpg", "mask": "b.png"}, "2 fields name an image, of image, mask"),
        ({"text": "x"}, "0 fields name an image, of text: set image_field"),
        ({"image": ["a.jpg", "b.jpg"]}, "0 fields name an image"),
        ({"image": "data:image/png;base64,AA=="}, "a data URI"),
        ({"image": ""}, "the name is empty"),
        ({"image": "a\0.jpg"}, "NUL"),
    ],
)
def test_a_task_without_the_name_of_an_image_is_a_reject(
    tmp_path: Path, data: object, problem: str
) -> None:
    (reject,) = rejected(tmp_path, task("a.jpg", BOX) | {"data": data})
    assert problem in reject


def test_image_field_names_the_field(tmp_path: Path) -> None:
    both = task("a.jpg", BOX) | {"data": {"image": "a.jpg", "mask": "b.png"}}
    assert list(read(tmp_path, both, image_field="image").annotations) == ["a.jpg"]


# Bad input


@pytest.mark.parametrize("image", ["../../etc/passwd", "/etc/passwd", "file:///etc/passwd"])
def test_no_other_file_is_read(tmp_path: Path, image: str) -> None:
    (reject,) = rejected(tmp_path, task(image, BOX), task("a.jpg", BOX))
    assert ": missing_image: " in reject


@pytest.mark.parametrize(
    ("results", "problem"),
    [
        ([BOX | {"image_rotation": 90}], "image_rotation is 90"),
        ([BOX, BOX | {"original_width": 7}], r"regions of images of several sizes"),
        ([BOX | {"original_width": 0}], "expected the size of an image, got 0x100"),
        ([BOX | {"original_width": "x"}], "$[0].annotations[0].result[0].original_width"),
        ([BOX | {"value": [1]}], "$[0].annotations[0].result[0].value"),
        ([BOX | {"value": BOX["value"] | {"x": None}}], "x: expected a number"),
        ([BOX | {"value": BOX["value"] | {"x": True}}], "x: expected a number"),
        ([BOX | {"value": BOX["value"] | {"x": 1e39}}], "x: too large a number"),
        ([BOX | {"value": BOX["value"] | {"rectanglelabels": [1]}}], "expected a list of texts"),
        ([BOX | {"value": BOX["value"] | {"rectanglelabels": [" "]}}], "a name that is empty"),
        ([BOX | {"value": BOX["value"] | {"rectanglelabels": ["a", "b"]}}], "several labels"),
        ([region("polygon", "cat", points=[1, 2, 3])], "points: expected a list of [x, y]"),
        ([region("polygon", "cat")], "points: expected a list of [x, y]"),
        ([region("brush", "cat")], "rle: expected a list of numbers"),
        ([region("polygon", "cat", points="x")], "points: expected a list of [x, y]"),
        ([{"type": "taxonomy", "value": {}}], "none of the results is a region or a choice"),
        ([{"value": {}}], "missing required field 'type'"),
        ([7], "expected 'object', got 'int'"),
    ],
)
def test_a_bad_result_rejects_its_image_alone(
    tmp_path: Path, results: list[object], problem: str
) -> None:
    tasks = (task("a.jpg", *results), task("b.jpg", BOX))
    report = read(tmp_path, *tasks, images=["a.jpg", "b.jpg"])
    ((key, reason, detail),) = [(it.key, it.reason.value, it.detail) for it in report.rejects]
    assert (key, reason) == ("a.jpg", "annotation_malformed")
    assert detail.startswith("e.json: $[0]")
    assert problem in detail
    assert list(report.annotations) == ["b.jpg"]


TEXT = json.dumps(task("a.jpg", BOX))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "the file is empty"),
        ("[]", "no tasks"),
        ("{}", "expected 'array', got 'object'"),
        (f"[{TEXT}", "truncated"),
        (f"[{TEXT}]]", "line 1, column"),
        (f"[{TEXT}, {{nope}}]", "line 1, column"),
        (f"[{TEXT}, NaN]", "NaN is no JSON"),
        ("[" * 100_000, "nested too deeply"),
        ("\x1f\x8b", "gzip"),
        ('[{"id": 1, "annotation_id": 2, "image": "a.jpg", "label": []}]', "JSON-MIN"),
        ('[{"id": 1, "image": "a.jpg"}]', "a task without `data`"),
    ],
)
def test_a_file_of_something_else_is_an_error(tmp_path: Path, content: str, problem: str) -> None:
    with pytest.raises(InputError, match=r"e\.json") as error:
        read(tmp_path, content.encode("latin-1"))
    assert problem in str(error.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (TEXT.replace('"data"', '"id": 2, "data"'), "the key 'id' is given twice"),
        (TEXT.replace('"x":', '"x": 1, "x":', 1), "the key 'x' is given twice in one object"),
        ("7", "expected 'object', got 'int'"),
    ],
)
def test_a_bad_task_is_a_reject(tmp_path: Path, text: str, problem: str) -> None:
    content = f"[{text}, {TEXT.replace('a.jpg', 'b.jpg')}]".encode()
    report = read(tmp_path, content, images=["a.jpg", "b.jpg"])
    assert [problem in it.detail for it in report.rejects] == [True]
    assert list(report.annotations) == ["b.jpg"]


def test_another_encoding_rejects_its_task(tmp_path: Path) -> None:
    report = read(tmp_path, f"[{TEXT}]".replace("cat", "\xe9").encode("latin-1"))
    (reject,) = report.rejects
    assert "$[0].annotations: expected UTF-8 text" in reject.detail


def test_lone_surrogates_are_replaced_and_counted(tmp_path: Path) -> None:
    text = TEXT.replace('["cat"]', '["c\\ud800t"]')
    found = read(tmp_path, f"[{text}]".encode()).annotations["a.jpg"]
    assert found.objects[0].label == "c\ufffdt"
    assert found.corrections == {"lone_surrogate_replaced": 1}


def test_a_long_file_stays_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "WHOLE_ANNOTATION_BYTES", 10)
    names = [f"{number}.jpg" for number in range(30)]
    report = read(tmp_path, *(task(name, BOX) for name in names), images=names)
    assert list(report.annotations) == sorted(names)
    for content in (b"{}", f"[{TEXT}]x".encode(), f"[{TEXT}]}}".encode(), f"[{TEXT}".encode()):
        with pytest.raises(InputError):
            read(tmp_path, content)

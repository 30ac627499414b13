"""What happens to images of which no object is left, and to classes of which none is."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.support.archive_files import write_files
from tests.support.builds import Build, Json, build_config, coco_document
from tests.support.dataset import run
from tests.support.image_makers import plain_jpeg
from tests.support.tfrecords import make_example, write_tfrecord
from tests.support.voc_files import voc_object, voc_xml

# Every picture has 32 x 24 pixels. `kept.jpg` has a cat from (4, 4) to (16, 16).
JPEG = plain_jpeg()


class Lost(NamedTuple):
    """A source with a picture that keeps an object, and one that loses all of them.

    Attributes:
        write: Writes the source into a folder; returns it for a config.
        kinds: How the reject names what is lost.
        vanished: The classes that vanish, as the warning lists them.
    """

    write: Callable[[Path], Json]
    kinds: str
    vanished: str = ""


def _coco(**lost: object) -> Callable[[Path], Json]:
    def write(folder: Path) -> Json:
        kept: Json = {"bbox": [4, 4, 12, 12], "area": 144}
        images = {"kept.jpg": [kept], "lost.jpg": [{"category_id": 2, **lost}]}
        document = coco_document(images, categories={"cat": 1, "dog": 2}, size=(32, 24))
        write_files(folder, {"coco.json": json.dumps(document)})
        return {"format": "coco", "images": str(folder), "annotations": [f"{folder}/coco.json"]}

    return write


def _lvis(folder: Path) -> Json:
    return {**_coco(bbox=[4, 4, 0, 12])(folder), "format": "lvis"}


def _voc(*lost: Json) -> Callable[[Path], Json]:
    cat = voc_object(name="cat", xmin=5, ymin=5, xmax=16, ymax=16)

    def write(folder: Path) -> Json:
        write_files(
            folder,
            {
                f"{name}.xml": voc_xml(*each, size=(32, 24))
                for name, each in (("kept", [cat]), ("lost", lost))
            },
        )
        return {"format": "voc", "root": str(folder)}

    return write


def _labelme(*lost: Json, **more: object) -> Callable[[Path], Json]:
    cat = {"label": "cat", "points": [[4, 4], [16, 16]], "shape_type": "rectangle"}

    def write(folder: Path) -> Json:
        for name, shapes in (("kept", [cat]), ("lost", lost)):
            document = {"imagePath": f"{name}.jpg", "shapes": shapes}
            write_files(folder, {f"{name}.json": json.dumps(document)})
        return {"format": "labelme", "root": str(folder), **more}

    return write


def _cvat(lost: str) -> Callable[[Path], Json]:
    def write(folder: Path) -> Json:
        text = (
            '<annotations><image id="0" name="kept.jpg" width="32" height="24">'
            '<box label="cat" xtl="4" ytl="4" xbr="16" ybr="16"/></image>'
            f'<image id="1" name="lost.jpg" width="32" height="24">{lost}</image></annotations>'
        )
        write_files(folder, {"cvat.xml": text})
        return {"format": "cvat", "images": str(folder), "annotations": [f"{folder}/cvat.xml"]}

    return write


def _yolo(line: str) -> Callable[[Path], Json]:
    def write(folder: Path) -> Json:
        for name, lines in (("kept", "0 0.3 0.4 0.3 0.4\n"), ("lost", line)):
            write_files(folder, {f"labels/{name}.txt": lines})
            (folder / "images").mkdir(exist_ok=True)
            (folder / f"{name}.jpg").rename(folder / "images" / f"{name}.jpg")
        write_files(folder, {"data.yaml": "names: [cat, dog]"})
        return {"format": "yolo", "root": str(folder)}

    return write


def _table(suffix: str) -> Callable[[Path], Json]:
    rows = [("kept.jpg", 4, 4, 16, 16, "cat"), ("lost.jpg", 4, 4, 4, 16, "dog")]
    names = ("filename", "xmin", "ymin", "xmax", "ymax", "class")

    def write(folder: Path) -> Json:
        text = "\n".join(",".join(map(str, row)) for row in (names, *rows))
        if suffix == "jsonl":
            text = "\n".join(json.dumps(dict(zip(names, row, strict=True))) for row in rows)
        write_files(folder, {f"table.{suffix}": text})
        manifest = [f"{folder}/table.{suffix}"]
        return {"format": suffix, "manifest": manifest, "image_root": [str(folder)]}

    return write


def _open_images(folder: Path) -> Json:
    header = "ImageID,Source,LabelName,Confidence,XMin,XMax,YMin,YMax"
    rows = ("kept,s,/m/1,1,0.1,0.5,0.1,0.5", "lost,s,/m/2,1,0.5,0.5,0,1")
    write_files(folder, {"boxes.csv": "\n".join((header, *rows))})
    return {"format": "open-images", "images": str(folder), "boxes": [f"{folder}/boxes.csv"]}


def _tfrecord(right: float) -> Callable[[Path], Json]:
    def write(folder: Path) -> Json:
        box = {"xmin": 0.1, "ymin": 0.1, "xmax": 0.5, "ymax": 0.5}
        examples = [
            {
                "image/encoded": [JPEG],
                "image/filename": [name],
                "image/object/class/text": [label],
                **{f"image/object/bbox/{side}": [value] for side, value in sides.items()},
            }
            for name, label, sides in (
                (b"kept.jpg", b"cat", box),
                (b"lost.jpg", b"dog", box | {"xmax": right}),
            )
        ]
        write_tfrecord(folder / "x.tfrecord", *map(make_example, examples))
        return {"format": "tfrecord", "tfrecords": [f"{folder}/x.tfrecord"]}

    return write


def _shape(kind: str, *points: list[float], label: str = "dog") -> Json:
    return {"label": label, "points": list(points), "shape_type": kind}


NO_AREA = "1 box_without_area_dropped ("
NO_BOX = "1 object_without_box_dropped ("
LINES = '<polyline label="dog" points="1,1;5,5"/>'
ROTATED = voc_object(name="dog", xmin=..., ymin=..., xmax=..., ymax=...)
SOURCES = {
    "coco: side of 0": Lost(_coco(bbox=[4, 4, 0, 12]), NO_AREA),
    "coco: turned side of 0": Lost(_coco(bbox=[8, 4, 12, 0], attributes={"rotation": 45}), NO_AREA),
    "coco: outside": Lost(_coco(bbox=[40, 4, 9, 12]), NO_AREA),
    "coco: no bbox": Lost(_coco(), f"{NO_BOX}dog (no bbox))", "dog (no bbox)"),
    "coco: unknown category": Lost(
        _coco(bbox=[4, 4, 9, 9], category_id=7), "1 object_of_unknown_category_dropped (7)"
    ),
    "lvis: side of 0": Lost(_lvis, NO_AREA),
    "voc: outside": Lost(_voc(voc_object(name="dog", xmin=41, ymin=5, xmax=50, ymax=16)), NO_AREA),
    "voc: no box": Lost(_voc(ROTATED), f"{NO_BOX}dog (no bndbox))", "dog (no bndbox)"),
    "labelme: points": Lost(
        _labelme(_shape("point", [4, 4])),
        f"{NO_BOX}dog (point))",
        "dog (point: --keypoints dog)",
    ),
    "labelme: lines": Lost(
        _labelme(*[_shape("line", [1, 1], [5, 5])] * 2),
        "2 object_without_box_dropped (such as dog (line))",
        "dog (line)",
    ),
    "labelme: keypoints of nothing": Lost(
        _labelme(_shape("point", [4, 4], label="nose"), keypoints=["nose"]),
        "1 keypoint_in_no_object_dropped (nose)",
    ),
    "labelme: flat polygon": Lost(_labelme(_shape("polygon", [4, 4], [4, 8], [4, 16])), NO_AREA),
    "cvat: lines": Lost(_cvat(LINES), f"{NO_BOX}dog (polyline))", "dog (polyline)"),
    "cvat: points": Lost(
        _cvat(LINES.replace("polyline", "points")), f"{NO_BOX}dog (points))", "dog (points)"
    ),
    "cvat: another shape": Lost(_cvat('<arc label="dog"/>'), f"{NO_BOX}dog (arc))", "dog (arc)"),
    "cvat: turned side of 0": Lost(
        _cvat('<box label="dog" xtl="8" ytl="4" xbr="20" ybr="4" rotation="45"/>'), NO_AREA
    ),
    "cvat: turned radius of 0": Lost(
        _cvat('<ellipse label="dog" cx="14" cy="9" rx="6" ry="0" rotation="45"/>'), NO_AREA
    ),
    "yolo: side of 0": Lost(_yolo("1 0.5 0.5 0 0.5\n"), NO_AREA),
    "csv: side of 0": Lost(_table("csv"), NO_AREA),
    "jsonl: side of 0": Lost(_table("jsonl"), NO_AREA),
    "open-images: side of 0": Lost(_open_images, NO_AREA),
    "tfrecord: side of 0": Lost(_tfrecord(0.1), NO_AREA),
    "tfrecord: not a number": Lost(
        _tfrecord(float("nan")), f"{NO_BOX}dog (no box))", "dog (no box)"
    ),
}


def _name(key: str) -> str:
    return key.rpartition("/")[2]


def build(lost: Lost, folder: Path, **config: Any) -> Build:  # noqa: ANN401  # Any config.
    data = folder / "data"
    write_files(data, {"kept.jpg": JPEG, "lost.jpg": JPEG})
    settings = {"rejects": {"max_ratio": 0.5}, **config}
    return build_config({"splits": {"train": lost.write(data)}, **settings}, folder=folder)


def build_all(names: Sequence[str], folder: Path, **config: Any) -> Build:  # noqa: ANN401  # Any config.
    """Builds several sources at once, into the splits `s0`, `s1`, and so on."""
    splits = {}
    for number, name in enumerate(names):
        data = write_files(folder / f"s{number}", {"kept.jpg": JPEG, "lost.jpg": JPEG})
        splits[f"s{number}"] = SOURCES[name].write(data)
    labels = {"ids": "contiguous", **config.pop("labels", {})}
    settings = {"rejects": {"max_ratio": 0.5}, "labels": labels, **config}
    return build_config({"splits": splits, **settings}, folder=folder)


def check_lost(lost: Lost, built: Build, *, split: str = "train") -> None:
    """Checks that the second picture is rejected, and says what it has lost."""
    (reject,) = (each for each in built.rejects() if each["split"] == split)
    assert (_name(reject["key"]), reject["reason"]) == ("lost.jpg", "objects_lost")
    assert reject["detail"].startswith(f"nothing is left of its annotations: {lost.kinds}")
    assert [len(example.boxes) for example in built.examples(split)] == [1]


def test_an_image_that_loses_all_of_its_objects_is_rejected(tmp_path: Path) -> None:
    built = build_all([*SOURCES], tmp_path)
    for number, lost in enumerate(SOURCES.values()):
        check_lost(lost, built, split=f"s{number}")


# The words of a class that vanishes are those of the reject.
VANISHED = {"labelme: points", "cvat: lines", "tfrecord: not a number"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in VANISHED else pytest.mark.slow)
        for name, lost in SOURCES.items()
        if lost.vanished
    ],
)
def test_a_class_that_vanishes_is_named_once(name: str, tmp_path: Path) -> None:
    built = build(SOURCES[name], tmp_path)

    (text,) = (text for text in built.summary["warnings"] if " in no Example, " in text)
    assert text.split(": ", 1)[1].partition("; draw")[0] == SOURCES[name].vanished
    assert sum("dog" in text for text in built.summary["warnings"]) == 1


def test_a_class_that_is_rejected_has_not_vanished(tmp_path: Path) -> None:
    """All of its objects have lost is an area, or their class."""
    built = build_all([name for name, lost in SOURCES.items() if not lost.vanished], tmp_path)
    assert not any(" in no Example, " in text for text in built.summary["warnings"])


@pytest.mark.parametrize(
    ("rule", "images", "excluded"),
    [("drop", ["kept.jpg"], 1), ("keep", ["kept.jpg", "lost.jpg"], 0)],
)
def test_the_config_decides_what_happens_to_it(
    rule: str, images: list[str], excluded: int, tmp_path: Path
) -> None:
    built = build_all(["labelme: points", "csv: side of 0"], tmp_path, objects_lost=rule)

    assert built.reasons() == {}
    for split in ("s0", "s1"):
        assert sorted(built.by_key(split)) == images
        assert built.counts(split)["excluded"].get("objects_lost", 0) == excluded
        assert bool(built.counts(split)["corrections"]) == (rule == "keep")


@pytest.mark.parametrize("labels", [{"exclude": ["dog"]}, {"include": ["cat"]}])
def test_objects_that_the_config_leaves_out_are_not_lost(labels: Json, tmp_path: Path) -> None:
    names = ["labelme: points", "cvat: lines", "coco: no bbox", "yolo: side of 0"]
    built = build_all(names, tmp_path, labels=labels)

    for number in range(len(names)):
        found = sorted(map(_name, built.by_key(f"s{number}")))
        assert found == ["kept.jpg", "lost.jpg"]
    assert not any("dog" in text for text in built.summary["warnings"])


def test_an_example_of_each_object_needs_one(tmp_path: Path) -> None:
    lost = SOURCES["coco: side of 0"]
    built = build(lost, tmp_path, example_per="annotation")
    assert built.reasons() == {("lost.jpg", "objects_lost"): 1}
    again = build(lost, tmp_path / "kept", example_per="annotation", objects_lost="keep")
    assert again.counts()["excluded"] == {"no_objects": 1}


def test_labels_make_up_for_lost_labels_and_not_for_lost_objects(tmp_path: Path) -> None:
    names = "".join(f"<label><name>{name}</name></label>" for name in ("cat", "day"))
    declared = f"<meta><task><labels>{names}</labels></task></meta>"
    day, night = (f'<tag label="{name}"/>' for name in ("day", "night"))
    splits = {}
    for split, lost in (("objects", LINES + day), ("alone", night), ("beside", night + day)):
        folder = write_files(tmp_path / split, {"kept.jpg": JPEG, "lost.jpg": JPEG})
        splits[split] = _cvat(lost)(folder)
        if split != "objects":
            path = folder / "cvat.xml"
            text = path.read_text().replace("<annotations>", f"<annotations>{declared}")
            path.write_text(text)
    labels = {"ids": "contiguous"}
    config = {"splits": splits, "labels": labels, "rejects": {"max_ratio": 0.5}}
    built = build_config(config, folder=tmp_path)

    rejects = {each["split"]: each for each in built.rejects()}
    assert {split: each["reason"] for split, each in rejects.items()} == dict.fromkeys(
        ("objects", "alone"), "objects_lost"
    )
    assert "1 label_of_unknown_category_dropped (night)" in rejects["alone"]["detail"]


def test_if_no_object_is_left_the_message_says_so(tmp_path: Path) -> None:
    lost = SOURCES["labelme: points"]
    data = tmp_path / "data"
    write_files(data, {"lost.jpg": JPEG})
    source = lost.write(data)
    (data / "kept.json").unlink()
    built = build_config({"splits": {"train": source}}, folder=tmp_path, exit_code=3)

    message = built.summary["message"]
    assert message.startswith(
        "no object is left: 1 image has lost all of its objects; if that is intended: "
        "--set objects=none --set objects_lost=keep\n"
    )
    assert "1 object_without_box_dropped (dog (point))" in message
    assert "max_ratio" not in message
    meant = {"objects": "none", "objects_lost": "keep"}
    build_config({"splits": {"train": source}, **meant}, folder=tmp_path, name="meant")


def test_a_plan_names_the_classes_that_vanish(tmp_path: Path) -> None:
    data = write_files(tmp_path / "data", {"kept.jpg": JPEG, "lost.jpg": JPEG})
    _labelme(*(_shape("point", [4, 4], label=f"p{number:02}") for number in range(12)))(data)
    words = ("labelme", "--root", str(data), "--output", str(tmp_path / "out"))

    planned = run("plan", *words)

    text = "12 classes are in no Example, because no object of the source has a box: p00 (point: "
    assert text in planned.stdout
    assert "p09 (point: --keypoints p09) and 2 more; draw boxes" in planned.stdout
    assert " in no Example" not in run("plan", *words, "--limit", "1").stdout


def test_a_reused_shard_keeps_its_rejects_until_the_rule_changes(tmp_path: Path) -> None:
    first = build(SOURCES["csv: side of 0"], tmp_path)
    assert first.reasons() == {("lost.jpg", "objects_lost"): 1}
    config, reuse = str(tmp_path / "out.yaml"), ("--reuse", str(first.output), "--json")

    def again(name: str, *words: str) -> Json:
        output = ("--set", f"output.path={tmp_path}/{name}")
        stdout = run("build", config, *output, *reuse, *words, exit_code=0).stdout
        summary: Json = json.loads(stdout)
        return summary

    copied = again("copied")
    assert copied["reuse"]["copied_shards"] == 1
    assert copied["splits"]["train"]["rejected"] == {"objects_lost": 1}
    kept = again("kept", "--objects-lost", "keep")
    assert kept["reuse"]["copied_shards"] == 0
    assert (kept["splits"]["train"]["examples"], kept["splits"]["train"]["rejected"]) == (2, {})


def _via_without_class(folder: Path) -> Json:
    def region(x: int, **attributes: str) -> Json:
        shape = {"name": "rect", "x": x, "y": 2, "width": 9, "height": 9}
        return {"shape_attributes": shape, "region_attributes": attributes}

    regions = {"a.jpg": [region(1, type="cat")], "b.jpg": [region(1, type="cat"), region(12)]}
    content = {name: {"filename": name, "regions": each} for name, each in regions.items()}
    (folder / "via.json").write_text(json.dumps(content))
    return {"format": "via", "images": str(folder), "annotations": [str(folder / "via.json")]}


def _coco_without_class(folder: Path) -> Json:
    objects: list[Json] = [{"bbox": [1, 1, 9, 9]}, {"bbox": [12, 1, 9, 9], "category_id": 77}]
    content = coco_document({"a.jpg": objects[:1], "b.jpg": objects}, categories={"cat": 1})
    (folder / "coco.json").write_text(json.dumps(content))
    return {"format": "coco", "images": str(folder), "annotations": [str(folder / "coco.json")]}


@pytest.mark.parametrize("write", [_via_without_class, _coco_without_class])
def test_images_whose_objects_lose_their_class_are_named(
    write: Callable[[Path], Json], tmp_path: Path
) -> None:
    folder = write_files(tmp_path / "in", {"a.jpg": JPEG, "b.jpg": JPEG})
    built = build_config({"source": write(folder)}, folder=tmp_path)
    (line,) = (line for line in built.summary["warnings"] if "no class that" in line)
    assert line.startswith("1 object has no class that the annotations declare")
    assert "such as in b.jpg" in line

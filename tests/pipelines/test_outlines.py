"""Outlines that are not written are counted, and a line names the setting that writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from shardbeam.pipelines.plan import make_plan
from shardbeam.pipelines.preview import count_inputs
from shardbeam.transforms.dataset.input_counts import InputCounts
from tests.support.archive_files import write_files
from tests.support.builds import Json, build_config, coco_document
from tests.support.config_making import make_config
from tests.support.dataset import run
from tests.support.hub_files import BOXES, IMAGE, classes, hub_image, hub_parquet, list_of, value
from tests.support.image_makers import plain_jpeg
from tests.support.label_studio_files import region, task

# Every picture has 32 x 24 pixels.
JPEG = plain_jpeg()
SIZE = {"width": 32, "height": 24}
TRIANGLE = [4, 4, 16, 4, 4, 16]
# A turned square says more than the box around it; an upright one does not.
TURNED = [10, 4, 16, 10, 10, 16, 4, 10]
UPRIGHT = [4, 4, 16, 4, 16, 16, 4, 16]
CLOSED = [*UPRIGHT, 4, 4]
RUNS = {"size": [24, 32], "counts": [100, 5, 663]}
BOX = [4, 4, 12, 12]


def _points(polygon: list[int]) -> list[list[int]]:
    return [[*point] for point in zip(polygon[0::2], polygon[1::2], strict=True)]


def _annotations(**more: object) -> list[Json]:
    """Six objects with an outline, and six without one."""
    outlines = [[TRIANGLE], [TURNED], [UPRIGHT, TRIANGLE], RUNS, [_points(TRIANGLE)], [[0.5] * 400]]
    others = [[UPRIGHT], [CLOSED], [], None, ..., "nothing"]
    return [
        {"bbox": BOX, "area": 144 - number, **more}
        | ({} if each is ... else {"segmentation": each})
        for number, each in enumerate([*outlines, *others])
    ]


def _write_coco(folder: Path, *files: list[Json]) -> Json:
    """Writes files about one picture, each with some annotations of it."""
    paths = []
    for number, found in enumerate(files):
        document = coco_document({"a.jpg": found}, size=(32, 24))
        write_files(folder, {f"{number}.json": json.dumps(document)})
        paths.append(f"{folder}/{number}.json")
    return {"format": "coco", "images": str(folder), "annotations": paths}


def coco(folder: Path) -> Json:
    return _write_coco(folder, _annotations())


def coco_with_attributes(folder: Path) -> Json:
    """CVAT's attributes take the long way; a turned box is an outline of its own."""
    others = [{"bbox": BOX, "attributes": {"rotation": angle}} for angle in (30, 0)]
    return _write_coco(folder, [*_annotations(attributes={"rotation": 0}), *others])


def coco_in_two_files(folder: Path) -> Json:
    return _write_coco(folder, _annotations()[:6], _annotations(iscrowd=0)[:3])


def coco_crowds(folder: Path) -> Json:
    return _write_coco(folder, [{"bbox": BOX, "iscrowd": 1, "segmentation": RUNS}])


def lvis(folder: Path) -> Json:
    return {**coco(folder), "format": "lvis"}


def yolo(folder: Path) -> Json:
    polygons = [TRIANGLE, TURNED, UPRIGHT]
    lines = ["0 0.5 0.5 0.2 0.2", *(f"0 {' '.join(str(it / 32) for it in p)}" for p in polygons)]
    write_files(folder, {"images/a.jpg": JPEG, "data.yaml": "names: [cat]"})
    write_files(folder, {"labels/a.txt": "\n".join(lines)})
    return {"format": "yolo", "root": str(folder)}


def voc(folder: Path) -> Json:
    polygons = [
        "<polygon>{}</polygon>".format("".join(f"<pt><x>{x}</x><y>{y}</y></pt>" for x, y in each))
        for each in map(_points, (TRIANGLE, UPRIGHT))
    ]
    turned = "<cx>10</cx><cy>10</cy><w>8</w><h>8</h>"
    shapes = [
        *polygons,
        f"<robndbox>{turned}<angle>0.5</angle></robndbox>",
        f"<robndbox>{turned}<angle>0</angle></robndbox>",
        "<bndbox><xmin>4</xmin><ymin>4</ymin><xmax>9</xmax><ymax>9</ymax></bndbox>",
    ]
    objects = "".join(f"<object><name>cat</name>{shape}</object>" for shape in shapes)
    size = "<size><width>32</width><height>24</height></size>"
    write_files(folder, {"a.xml": f"<annotation>{size}{objects}</annotation>"})
    return {"format": "voc", "root": str(folder)}


def labelme(folder: Path) -> Json:
    shapes: list[Json] = [
        {"points": _points(TRIANGLE), "shape_type": "polygon"},
        {"points": _points(UPRIGHT), "shape_type": "polygon"},
        {"points": [[4, 4], [16, 16]], "shape_type": "rectangle"},
        {"points": [[10, 10], [12, 10]], "shape_type": "circle"},
        # Two shapes of one object.
        {"points": _points(TRIANGLE), "shape_type": "polygon", "group_id": 1},
        {"points": _points(TURNED), "shape_type": "polygon", "group_id": 1},
    ]
    document = {"imagePath": "a.jpg", "shapes": [{"label": "cat", **each} for each in shapes]}
    write_files(folder, {"a.json": json.dumps(document)})
    return {"format": "labelme", "root": str(folder)}


def cvat(folder: Path) -> Json:
    corners = 'xtl="4" ytl="4" xbr="16" ybr="16"'
    shapes = [
        '<polygon label="cat" points="4,4;16,4;4,16"/>',
        '<polygon label="cat" points="4,4;16,4;16,16;4,16"/>',
        f'<box label="cat" {corners}/>',
        f'<box label="cat" {corners} rotation="30"/>',
        '<ellipse label="cat" cx="10" cy="10" rx="6" ry="4"/>',
        '<mask label="cat" left="2" top="2" width="2" height="2" rle="1, 2, 1"/>',
        '<points label="cat" points="1,1"/>',
    ]
    image = f'<image id="0" name="a.jpg" width="32" height="24">{"".join(shapes)}</image>'
    write_files(folder, {"cvat.xml": f"<annotations>{image}</annotations>"})
    return {"format": "cvat", "images": str(folder), "annotations": [f"{folder}/cvat.xml"]}


def via(folder: Path) -> Json:
    shapes: list[Json] = [
        {"name": "rect", "x": 4, "y": 4, "width": 9, "height": 9},
        {"name": "circle", "cx": 10, "cy": 10, "r": 5},
        *(
            {"name": "polygon", "all_points_x": each[0::2], "all_points_y": each[1::2]}
            for each in (TRIANGLE, UPRIGHT)
        ),
    ]
    regions = [{"shape_attributes": it, "region_attributes": {"what": "cat"}} for it in shapes]
    document = {"a.jpg1": {"filename": "a.jpg", "size": 1, "regions": regions}}
    write_files(folder, {"via.json": json.dumps(document)})
    return {"format": "via", "images": str(folder), "annotations": [f"{folder}/via.json"]}


def label_studio(folder: Path) -> Json:
    sides = {"x": 10, "y": 10, "width": 20, "height": 20}
    results = [
        region("polygon", "cat", points=[[10, 10], [30, 10], [10, 40]]),
        region("polygon", "cat", points=[[10, 10], [30, 10], [30, 40], [10, 40]]),
        region("rectangle", "cat", **sides),
        region("rectangle", "cat", **sides, rotation=30),
    ]
    write_files(folder, {"project.json": json.dumps([task("a.jpg", *results)])})
    source = {"images": str(folder), "annotations": [f"{folder}/project.json"]}
    return {"format": "label-studio", **source}


def huggingface(folder: Path) -> Json:
    polygons = [[TRIANGLE], [UPRIGHT], []]
    objects = {"bbox": [BOX] * 3, "category": [0] * 3, "segmentation": polygons}
    features = {
        "image": IMAGE,
        **SIZE_FEATURES,
        "objects": {
            "bbox": BOXES,
            "category": list_of(classes("cat")),
            "segmentation": list_of(BOXES),
        },
    }
    rows = [{"image": hub_image(JPEG, "a.jpg"), **SIZE, "objects": objects}]
    (folder / "train.parquet").write_bytes(hub_parquet(rows, features))
    return {"format": "huggingface", "data": [f"{folder}/train.parquet"], "box_format": "xywh"}


SIZE_FEATURES = {side: value("int64") for side in SIZE}
SOURCES: Mapping[Callable[[Path], Json], int] = {
    coco: 6,
    coco_with_attributes: 7,
    coco_in_two_files: 6,
    coco_crowds: 1,
    lvis: 6,
    yolo: 2,
    voc: 2,
    labelme: 3,
    cvat: 4,
    via: 2,
    label_studio: 2,
    huggingface: 1,
}


def _count(source: Json, **config: object) -> InputCounts:
    raw = {"name": "x", "source": source, "output": {"path": "/nowhere"}, **config}
    return count_inputs(make_plan(make_config(raw, origin="")))


@pytest.mark.parametrize("write", SOURCES, ids=lambda write: write.__name__)
def test_outlines_that_are_not_written_are_counted(
    write: Callable[[Path], Json], tmp_path: Path
) -> None:
    source = write(write_files(tmp_path, {"a.jpg": JPEG}))

    assert _count(source).outlines == SOURCES[write]
    assert _count(source, masks="png").outlines == 0


def test_only_outlines_of_images_that_are_written_count(tmp_path: Path) -> None:
    """They do not count where an image is missing, left out, or beyond the limit."""
    triangle = [{"bbox": BOX, "segmentation": [TRIANGLE]}]
    document = coco_document(dict.fromkeys(("a.jpg", "b.jpg", "c.jpg", "d.jpg"), triangle))
    write_files(tmp_path, dict.fromkeys(("a.jpg", "b.jpg", "c.jpg"), JPEG))
    write_files(tmp_path, {"i.json": json.dumps(document), "without.txt": "a.jpg\n"})
    source = {"format": "coco", "images": str(tmp_path), "annotations": [f"{tmp_path}/i.json"]}

    assert _count(source).outlines == 3
    assert _count(source, exclude=f"{tmp_path}/without.txt").outlines == 2
    assert _count(source, limit=1).outlines == 1


def test_captions_and_maps_have_no_outlines(tmp_path: Path) -> None:
    annotations = [{**each, "caption": "A cat."} for each in _annotations()]
    source = _write_coco(write_files(tmp_path, {"a.jpg": JPEG}), annotations)

    assert _count({**source, "tasks": ["captions"]}).outlines == 0
    assert _count({**source, "tasks": ["semantic"]}).outlines == 0


LINE = (
    "{} have outlines, which are not written: masks: png (--masks png) writes them as masks"
).format


def test_init_plan_and_build_say_it_and_write_what_they_wrote(tmp_path: Path) -> None:
    data = tmp_path / "data"
    source = coco(write_files(data, {"a.jpg": JPEG}))
    boxes = _write_coco(
        write_files(tmp_path / "boxes", {"a.jpg": JPEG}),
        [{key: each[key] for key in ("bbox", "area")} for each in _annotations()],
    )
    line = LINE("6 objects")

    found = run("init", str(data), "--output", f"{tmp_path}/c.yaml", exit_code=0)
    assert line in found.stderr.splitlines()
    assert f"# {line}" in Path(f"{tmp_path}/c.yaml").read_text().splitlines()

    words = ("--set", f"output.path={tmp_path}/planned")
    assert line in run("plan", f"{tmp_path}/c.yaml", *words, exit_code=0).stdout.splitlines()

    built = build_config({"source": source}, folder=tmp_path)
    assert line in built.summary["notes"]
    plain = build_config({"source": boxes}, folder=tmp_path, name="plain")
    assert not any("outline" in note for note in plain.summary["notes"])
    assert built.examples() == plain.examples()
    masked = build_config({"source": source, "masks": "png"}, folder=tmp_path, name="masked")
    assert not any("outline" in note for note in masked.summary["notes"])

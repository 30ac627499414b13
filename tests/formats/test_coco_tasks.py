"""The tasks of a COCO source: given, or found out."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.coco import sniff
from shardbeam.transforms.formats.coco.coco import CocoFormat
from shardbeam.transforms.formats.coco.sniff import Task, sniff_tasks
from tests.support.coco_reading import document, image
from tests.support.making import make_format
from tests.support.stored import StoredFiles

_BOX = {"image_id": 7, "category_id": 18, "bbox": [1, 2, 3, 4]}
_POLYGONS = {"image_id": 7, "category_id": 18, "segmentation": [[1, 2, 3, 4, 5, 6]]}
_KEYPOINTS = _BOX | {"keypoints": [1, 2, 2]}
_CAPTION = {"image_id": 7, "caption": "A dog."}
_LABEL = {"image_id": 7, "category_id": 18}


def _sniff(content: bytes | Mapping[str, Any], *, uri: str = "a/some.json") -> frozenset[Task]:
    data = content if isinstance(content, bytes) else json.dumps(content).encode()
    return sniff_tasks(uri, storage=StoredFiles({uri: data}))


@pytest.mark.parametrize(
    ("annotations", "tasks"),
    [
        ([], set()),
        ([_BOX], {"detection"}),
        ([_POLYGONS], {"detection"}),
        ([_KEYPOINTS], {"detection", "keypoints"}),
        ([_BOX | {"keypoints": []}], {"detection"}),
        ([_CAPTION], {"captions"}),
        # As Datumaro writes them.
        ([_CAPTION | {"category_id": 0}], {"captions"}),
        ([_LABEL], {"classification"}),
        ([_LABEL, _BOX], {"detection"}),
        ([_BOX, _CAPTION], {"detection", "captions"}),
        ([_BOX] * 500 + [_KEYPOINTS], {"detection", "keypoints"}),
    ],
)
def test_tasks_follow_from_the_first_annotations(
    annotations: list[dict[str, Any]], tasks: set[Task]
) -> None:
    content = document(annotations=annotations)

    assert _sniff(content) == tasks
    assert _sniff(json.dumps(content, indent=2).encode()) == tasks
    assert _sniff(json.dumps({"annotations": annotations} | content).encode()) == tasks


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("stuff_train2017.json", "semantic"),
        ("my-stuff.json", "semantic"),
        ("STUFF.json", "semantic"),
        ("instances_stuffed_toys.json", "detection"),
        ("instances.json", "detection"),
    ],
)
def test_stuff_is_told_by_the_files_name(name: str, task: Task) -> None:
    assert _sniff(document(annotations=[_BOX]), uri=f"stuff/{name}") == {task}


@pytest.mark.parametrize(
    ("sections", "is_missing"),
    [
        ({"images": [image(id=1)], "categories": []}, True),
        ({"images": [image(id=1)], "annotations": None}, True),
        # There may really be none.
        ({"images": [image(id=1)], "annotations": []}, False),
        (document(annotations=[_BOX]), False),
        # As LVIS has it.
        ({"images": [image(id=1, neg_category_ids=[3])]}, True),
    ],
)
def test_a_file_without_the_section_of_annotations_is_named(
    tmp_path: Path, sections: dict[str, Any], is_missing: bool
) -> None:
    path = tmp_path / "image_info_test.json"
    path.write_text(json.dumps(sections))
    for name, more in (("coco", {}), ("coco", {"tasks": ["captions"]}), ("lvis", {})):
        made = make_format(name, images=str(tmp_path), annotations=[str(path)], **more)
        warnings = made.warnings()
        assert [text.partition(":")[0] for text in warnings] == (
            ["image_info_test.json has no section `annotations`"] if is_missing else []
        )
        assert all("; expect.max_unannotated refuses" in text for text in warnings)


def test_annotations_are_found_behind_many_images_wherever_reads_are_cut(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    content = document(
        images=[image(id=k, file_name=r'"annotations": [' + f"{k}.jpg") for k in range(40)],
        annotations=[_CAPTION, _BOX],
    )
    for read_bytes in (1, 7, 300, 4096):
        monkeypatch.setattr(sniff, "_READ_BYTES", read_bytes)
        # The first that a short read holds is enough.
        assert "captions" in _sniff(content)


def test_no_more_is_read_than_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sniff, "_READ_BYTES", 1_000)
    data = json.dumps({"annotations": [_BOX] * 1_000, "images": []}).encode()
    storage = StoredFiles({"a.json": data})

    assert sniff_tasks("a.json", storage=storage) == {"detection"}
    assert storage.read_bytes == 1_000


def test_an_annotation_may_be_longer_than_a_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sniff, "_READ_BYTES", 100)
    long = {"segmentation": {"counts": list(range(1_000)), "size": [1, 2]}, **_BOX}

    assert _sniff(document(annotations=[long])) == {"detection"}


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe\0",
        b'{"annotations": ',
        b'{"annotations": {}}',
        b'{"annotations": null}',
        b'{"annotations": [3, {"bbox": [1]}]}',
        b'{"annotations": [{"bbox": ' + b"[" * 100_000,
        b'{"annotation": [{"bbox": [1, 2, 3, 4]}]}',
    ],
)
def test_what_cannot_be_told_is_left_to_the_parser(data: bytes) -> None:
    assert _sniff(data) == frozenset()


def test_panoptic_segments_among_annotations_are_refused_at_launch() -> None:
    content = document(annotations=[{"image_id": 7, "file_name": "a.png", "segments_info": []}])

    with pytest.raises(InputError, match="--panoptic FILE"):
        _sniff(content)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    source = CocoFormat(images="i", annotations=[str(tmp_path / "nothing.json")])

    with pytest.raises(InputError, match="no such file"):
        source.resolve()


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a folder; only regular files are read"):
        CocoFormat(images="i", annotations=[str(tmp_path)]).resolve()


def _write(folder: Path, **files: Sequence[dict[str, Any]]) -> list[str]:
    paths = []
    for name, entries in files.items():
        path = folder / f"{name}.json"
        path.write_text(json.dumps(document(annotations=list(entries))), encoding="utf-8")
        paths.append(str(path))
    return paths


def test_tasks_of_all_files_are_found_and_passed_on(tmp_path: Path) -> None:
    files = _write(tmp_path, captions=[_CAPTION], stuff_val=[_POLYGONS], person=[_KEYPOINTS])
    source = CocoFormat(images="i", annotations=files, _masks=True)

    resolved = source.resolve()

    assert resolved.tasks == ["detection", "keypoints", "captions", "semantic"]
    assert resolved.kinds == {
        Kind.DETECTION,
        Kind.INSTANCE_MASKS,
        Kind.KEYPOINTS,
        Kind.CAPTIONS,
        Kind.SEMANTIC,
    }
    assert resolved.resolve() is resolved


def test_files_without_annotations_are_of_objects(tmp_path: Path) -> None:
    assert CocoFormat(images="i", annotations=_write(tmp_path, a=[])).resolve().tasks == [
        "detection"
    ]


def test_masks_are_tasks(tmp_path: Path) -> None:
    (file,) = _write(tmp_path, p=[])
    source = CocoFormat(images="i", panoptic=file, panoptic_masks=str(tmp_path))
    assert source.resolve().tasks == ["panoptic"]
    assert CocoFormat(images="i", semantic_masks="s").resolve().tasks == ["semantic"]


def test_given_tasks_stay() -> None:
    source = CocoFormat(images="i", annotations=["nothing.json"], tasks=["captions"])

    assert source.resolve() is source
    assert source.kinds == {Kind.CAPTIONS}


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({}, "annotations: missing; coco needs annotations or panoptic or semantic_masks"),
        ({"panoptic": "p.json"}, "panoptic_masks: missing"),
        ({"panoptic_masks": "p", "annotations": ["a"]}, "panoptic: missing"),
        ({"annotations": ["a"], "tasks": ["detections"]}, "detections"),
        ({"annotations": ["a"], "tasks": ["panoptic"]}, "tasks: panoptic needs panoptic and"),
        ({"semantic_masks": "a", "tasks": ["detection"]}, "tasks: detection needs annotations"),
        (
            {"panoptic": "p", "panoptic_masks": "p", "tasks": ["semantic"]},
            "tasks: semantic needs semantic_masks, or annotations of stuff",
        ),
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        make_format("coco", images="i", **settings)


def test_masks_without_objects_are_no_kind() -> None:
    assert CocoFormat(images="i", annotations=["a"], tasks=["captions"], _masks=True).kinds == {
        Kind.CAPTIONS
    }
    assert CocoFormat(images="i", annotations=["a"], _masks=True).kinds == {
        Kind.DETECTION,
        Kind.INSTANCE_MASKS,
    }

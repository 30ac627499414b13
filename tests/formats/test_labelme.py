"""How the shapes of a LabelMe file become objects, keypoints and labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, ListedFile, decode_annotations
from shardbeam.transforms.formats.join.sources import read_listed_file
from shardbeam.transforms.formats.labelme import LabelMeFormat
from shardbeam.transforms.formats.parsing.root_files import require_file
from shardbeam.transforms.storage.local import LocalStorage

_SQUARE = [[0, 0], [4, 0], [4, 4], [0, 4]]


def _shape(label: str, kind: str = "polygon", **changes: object) -> dict[str, Any]:
    points = {"point": [[1, 1]], "rectangle": [[0, 0], [4, 4]]}.get(kind, _SQUARE)
    return {"label": label, "points": points, "shape_type": kind, **changes}


def _read(
    folder: Path,
    *shapes: dict[str, Any],
    flags: dict[str, bool] | None = None,
    replace: tuple[str, str] = ("", ""),
) -> AnnotationEntry:
    (folder / "a.jpg").write_bytes(b"jpg")
    document = {"imagePath": "a.jpg", "shapes": shapes, "flags": flags}
    (folder / "a.json").write_text(json.dumps(document).replace(*replace))
    source = LabelMeFormat(root=str(folder), keypoints=["nose", "tail"], _masks=True)
    file = ListedFile(
        source="s",
        path="a.json",
        root=0,
        file=require_file(str(folder / "a.json")),
        join="",
        is_container=True,
    )
    items = read_listed_file(file, source_format=source)
    (entry,) = [item for item in items if isinstance(item, AnnotationEntry)]
    return entry


_DOG = _shape("dog", group_id=1)
# The lower left half of the square.
_BELOW = _shape("dog", points=[[0, 0], [0, 4], [4, 4]])
_MOVED = _DOG | {"points": [[8, 8], [9, 8], [9, 9]]}


@pytest.mark.parametrize(
    ("shapes", "objects", "corrections"),
    [
        # Objects are: label, box, outlines, keypoints.
        ([_shape("dog")], [("dog", (0, 0, 4, 4), 1, 0)], {}),
        ([_shape("dog", "rectangle")], [("dog", (0, 0, 4, 4), 0, 0)], {}),
        # A turned rectangle of X-AnyLabeling.
        (
            [_shape("dog", "rotation", points=[[2, 0], [6, 3], [4, 6], [0, 3]], direction=0.6)],
            [("dog", (0, 0, 6, 6), 1, 0)],
            {"box_turned": 1},
        ),
        # Outlines of one label and one group are one object.
        ([_DOG, _MOVED], [("dog", (0, 0, 9, 9), 2, 0)], {}),
        ([_DOG, _shape("cat", group_id=1)], [("dog", ..., 1, 0), ("cat", ..., 1, 0)], {}),
        ([_shape("dog"), _shape("dog")], [("dog", ..., 1, 0)] * 2, {}),
        ([_shape("dog", "rectangle", group_id=1)] * 2, [("dog", ..., 0, 0)] * 2, {}),
        # Points named like keypoints belong to the object of their group.
        ([_DOG, _shape("nose", "point", group_id=1)], [("dog", ..., 1, 6)], {}),
        (
            [_DOG, _shape("nose", "point", group_id=2)],
            [("dog", ..., 1, 0)],
            {"keypoint_in_no_object_dropped": 1},
        ),
        # Without a group, they belong to the one object that contains them.
        ([_shape("dog"), _shape("nose", "point")], [("dog", ..., 1, 6)], {}),
        ([_shape("dog", "rectangle"), _shape("tail", "point")], [("dog", ..., 0, 6)], {}),
        ([_shape("dog", group_id=1), _shape("nose", "point")], [("dog", ..., 1, 6)], {}),
        # Of several boxes around it, the outline decides.
        (
            [_BELOW, _shape("cat"), _shape("nose", "point", points=[[3, 1]])],
            [("dog", ..., 1, 0), ("cat", ..., 1, 6)],
            {},
        ),
        (
            [_shape("dog"), _shape("cat"), _shape("nose", "point")],
            [("dog", ..., 1, 0), ("cat", ..., 1, 0)],
            {"keypoint_in_several_objects_dropped": 1},
        ),
        (
            [_shape("dog"), *[_shape("nose", "point")] * 2, _shape("tail", "point")],
            [("dog", ..., 1, 6)],
            {"keypoint_repeated_dropped": 2},
        ),
        (
            [_DOG, *[_shape("nose", "point", **group) for group in ({"group_id": 1}, {})]],
            [("dog", ..., 1, 6)],
            {"keypoint_repeated_dropped": 1},
        ),
        (
            [_shape("dog"), _shape("nose", "point", points=[[9, 9]])],
            [("dog", ..., 1, 0)],
            {"keypoint_in_no_object_dropped": 1},
        ),
        ([_shape("nose", "point")], [], {"keypoint_in_no_object_dropped": 1}),
        ([_shape("ear", "point", group_id=1)], [], {"object_without_box_dropped": 1}),
        ([_shape("dog", "line")], [], {"object_without_box_dropped": 1}),
        ([_shape("__ignore__")], [], {"object_of_excluded_label_dropped": 1}),
    ],
)
def test_what_becomes_of_shapes(
    shapes: list[dict[str, Any]], objects: list[Any], corrections: dict[str, int], tmp_path: Path
) -> None:
    entry = _read(tmp_path, *shapes)

    assert entry.defect is None, entry.detail
    found = decode_annotations(entry.annotations)
    assert [
        (
            item.label,
            item.bbox if box is not ... else ...,
            len(json.loads(item.segmentation or b"[]")),
            len(item.keypoints),
        )
        for item, (_, box, _, _) in zip(found.objects, objects, strict=True)
    ] == objects
    assert found.corrections == corrections


@pytest.mark.parametrize(
    ("shapes", "detail"),
    [
        ([_DOG, _shape("dog", "blob")], "a.json: $.shapes[1]: unknown shape_type 'blob'"),
        (
            [_DOG, *[_shape("nose", "point", group_id=1)] * 2],
            "a.json: $.shapes[2]: 'nose' occurs twice in group 1",
        ),
        (
            [_DOG, _shape("cat", group_id=1), _shape("nose", "point", group_id=1)],
            "a.json: $.shapes: group 1 has keypoints and 2 objects, expected one",
        ),
    ],
)
def test_shapes_that_reject_their_image(
    shapes: list[dict[str, Any]], detail: str, tmp_path: Path
) -> None:
    assert _read(tmp_path, *shapes).detail == detail


def test_a_shape_with_a_key_twice_rejects_its_image(tmp_path: Path) -> None:
    entry = _read(tmp_path, _shape("cat"), replace=('"label":', '"label": "dog", "label":'))
    assert "the key 'label' is given twice in one object" in entry.detail


def test_flags_that_are_set_are_labels(tmp_path: Path) -> None:
    flags = {"day": True, "night": False, "__ignore__": True, " ": True}

    found = decode_annotations(_read(tmp_path, flags=flags).annotations)

    assert found.labels == ("day",)
    assert found.corrections == {"excluded_label_dropped": 1}


def test_a_failing_storage_is_no_reject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read now may be sound, so its picture must not be left out."""

    def fail(self: object, uri: str, **place: object) -> bytes:
        raise InputError(uri=uri, problem="the server does not answer")

    monkeypatch.setattr(LocalStorage, "read", fail)
    with pytest.raises(InputError, match="does not answer"):
        _read(tmp_path, _DOG)

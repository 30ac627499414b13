"""Writes a dataset as COCO: JSON files, and a folder of images for each split.

    annotations/instances_train.json           objects; person_keypoints_train.json if the
                                               objects have keypoints
    annotations/captions_train.json            captions, if there are any
    annotations/labels_train.json              classes of images, if there are any
    images/train/...                           the images

The format: https://cocodataset.org/#format-data. An annotation with only a `category_id` is the
class of an image, as in datumaro's `coco_labels`.
"""

from __future__ import annotations

import math
import re
import shutil
import tempfile
from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

import msgspec
import numpy as np

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.dataset.export.base import Layout
from shardbeam.transforms.dataset.export.images import (
    BOX_KEYS,
    IMAGE_KEYS,
    KEYPOINT_KEYS,
    ExportImage,
)
from shardbeam.transforms.dataset.export.names import (
    NumberSet,
    UniqueNames,
    safe_name,
    safe_path,
    strip_layout,
)

# A text that is the integer it stands for.
_INTEGER = re.compile(r"0|[1-9][0-9]{0,17}")
_BOX_DIGITS = 2
_POINT_DIGITS = 3
_POINT_VALUES = 3
_OBJECTS, _CAPTIONS, _LABELS = "instances", "captions", "labels"
_KEYPOINTS = "person_keypoints"
# Larger parts of a file are on disk until the file is written.
_MEMORY_BYTES = 1 << 20


class CocoLayout(Layout):
    """COCO: `annotations/` and `images/`."""

    NAME: ClassVar[str] = "COCO"
    KEYS: ClassVar[frozenset[str]] = (
        IMAGE_KEYS
        | BOX_KEYS
        | KEYPOINT_KEYS
        | {"image/source_id", "image/caption", "image/class/label", "image/class/text"}
        | {"image/object/area", "image/object/mask", "annotation/area", "annotation/mask"}
        | {"annotation/image_id", "annotation/id"}
    )
    ENTRIES: ClassVar[tuple[str, ...]] = ("images", "annotations")
    MARKED: ClassVar[tuple[str, str]] = ("annotations", ".json")

    _split: _Split | None = None
    # The last ids that were given.
    _image_number = _annotations = 0

    def begin(self, split: str) -> None:
        """Ends the split before, and begins another."""
        self._end()
        self._split = _Split(split, safe_name(split), folder=self.folder)

    def add(self, image: ExportImage) -> int:
        """Writes an image, and keeps what its split's files say about it."""
        split = self._split
        assert split is not None
        if min(image.width, image.height) < 1:
            raise InputError(
                uri=self.dataset,
                place=image.where,
                problem="the size of the image is not known, and COCO's boxes are in pixels; "
                "build the dataset again with `shardbeam build tfrecord`, and export that",
            )
        name = self._name(image, split=split)
        image_id = self._image_id(image, split=split)
        self.write(f"images/{split.folder}/{name}", image.data)
        size = {"width": image.width, "height": image.height}
        split.images.add({"id": image_id, "file_name": name, **size})
        objects = 0
        for item in image.objects:
            objects += self._add_object(item, image=image, image_id=image_id, split=split)
        split.has_objects |= image.has_objects
        of_image: list[tuple[str, dict[str, Any]]] = [
            *((_CAPTIONS, {"caption": caption}) for caption in image.captions),
            *((_LABELS, {"category_id": self.classes.ids[label]}) for label in image.labels),
        ]
        for what, values in of_image:
            self._annotate(what, {"image_id": image_id, **values}, split=split)
        self.losses.note("annotation ids, numbered again from 1", count=objects + len(of_image))
        self.losses.note("licenses and URLs of images")
        return objects

    def finish(self) -> None:
        """Ends the last split."""
        self._end()
        self.losses.note("supercategories of classes", count=len(self.classes.ids))

    def _name(self, image: ExportImage, *, split: _Split) -> str:
        key = strip_layout(image.key, split=split.name)
        path = safe_path(key, image_format=image.format, number=image.number)
        name = split.names.take(path, number=image.number)
        if name != key:
            self.losses.note("names of images, changed", example=f"{image.key!r}: {name!r}")
        return name

    def _image_id(self, image: ExportImage, *, split: _Split) -> int:
        if _INTEGER.fullmatch(image.image_id) and split.ids.add(int(image.image_id)):
            return int(image.image_id)
        if image.image_id:
            self.losses.note(
                "image ids that are no whole numbers or occur twice, numbered again",
                example=image.image_id,
            )
        self._image_number += 1
        while not split.ids.add(self._image_number):
            self._image_number += 1
        return self._image_number

    def _annotate(self, what: str, values: dict[str, Any], *, split: _Split) -> None:
        """Adds an annotation to a file of the split, with an id that no file has."""
        self._annotations += 1
        if what not in split.annotations:
            split.annotations[what] = _Part(self.folder)
        split.annotations[what].add({"id": self._annotations, **values})

    def _add_object(
        self, item: ObjectAnnotation, *, image: ExportImage, image_id: int, split: _Split
    ) -> bool:
        """Adds an object to its split's file, unless its box ends before it begins."""
        size = (image.width, image.height) * 2
        left, top, right, bottom = (
            round(edge * side, _BOX_DIGITS) for edge, side in zip(item.bbox, size, strict=True)
        )
        width, height = round(right - left, _BOX_DIGITS), round(bottom - top, _BOX_DIGITS)
        if width < 0 or height < 0:
            self.losses.note("objects whose box ends before it begins", example=image.key)
            return False
        values: dict[str, Any] = {
            "image_id": image_id,
            "category_id": self.classes.ids[item.label],
            "bbox": [left, top, width, height],
        }
        runs = msgspec.json.decode(item.segmentation) if item.segmentation else None
        if 0 <= item.area < math.inf:
            # The shortest number that is the same in the Example's 32 bits.
            area = float(str(np.float32(item.area * image.width * image.height)))
        else:
            area = sum(runs["counts"][1::2]) if runs else round(width * height, _BOX_DIGITS)
        values |= {"area": area, "iscrowd": int(item.is_crowd)}
        if runs:
            values["segmentation"] = runs
            self.losses.note("polygons: masks are written as run lengths (RLE)")
        if item.keypoints:
            split.has_keypoints = True
            points = list(self._points(item, image=image))
            labelled = sum(visibility > 0 for visibility in points[2::_POINT_VALUES])
            values |= {"keypoints": points, "num_keypoints": labelled}
        self._annotate(_OBJECTS, values, split=split)
        return True

    def _points(self, item: ObjectAnnotation, *, image: ExportImage) -> Iterator[float]:
        for x, y, visibility in zip(*[iter(item.keypoints)] * _POINT_VALUES, strict=True):
            yield round(x * image.width, _POINT_DIGITS)
            yield round(y * image.height, _POINT_DIGITS)
            yield int(visibility)

    def _end(self) -> None:
        """Writes the files of a split."""
        split, self._split = self._split, None
        if split is None:
            return
        parts = dict(split.annotations)
        if split.has_objects or not parts:
            parts.setdefault(_OBJECTS, _Part(self.folder))
        for what, part in parts.items():
            kind = _KEYPOINTS if what == _OBJECTS and split.has_keypoints else what
            categories = [] if what == _CAPTIONS else list(self._categories(split, what=what))
            with self.create(f"annotations/{kind}_{split.folder}.json") as file:
                info = {"description": self.mark, "contributor": "Shardbeam"}
                file.write(b'{"info":%s,\n"licenses":[],\n' % msgspec.json.encode(info))
                split.images.copy_to(file, name=b"images")
                part.copy_to(file, name=b"annotations")
                file.write(b'"categories":%s}\n' % msgspec.json.encode(categories))
        split.close()

    def _categories(self, split: _Split, *, what: str) -> Iterator[dict[str, Any]]:
        for category_id, name in self.classes.by_id().items():
            category: dict[str, Any] = {"id": category_id, "name": name, "supercategory": ""}
            if what == _OBJECTS and split.has_keypoints:
                # COCO numbers keypoints from 1.
                skeleton = [[a + 1, b + 1] for a, b in self.classes.skeleton_of(name)]
                category |= {"keypoints": self.classes.keypoints, "skeleton": skeleton}
            yield category


class _Part:
    """A list in a JSON file that is written later: in memory, or on disk if it is long."""

    def __init__(self, folder: str) -> None:
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115  # Closed by `close`.
            max_size=_MEMORY_BYTES, dir=folder
        )
        self._encoder = msgspec.json.Encoder()
        self.size = 0

    def add(self, item: dict[str, Any]) -> None:
        self._file.write(b",\n" if self.size else b"\n")
        self._file.write(self._encoder.encode(item))
        self.size += 1

    def copy_to(self, file: BinaryIO, *, name: bytes) -> None:
        file.write(b'"%s":[' % name)
        self._file.seek(0)
        shutil.copyfileobj(self._file, file)
        file.write(b"],\n")

    def close(self) -> None:
        self._file.close()


class _Split:
    """A split that is being written.

    Attributes:
        name: Its name.
        folder: Its name in those of files and folders.
        names: The names of its images.
        ids: The ids of its images.
        images: The section `images`.
        annotations: `{kind: the section "annotations" of its file}`.
        has_objects: Whether an Example has the keys of objects.
        has_keypoints: Whether an object has keypoints.
    """

    def __init__(self, name: str, folder_name: str, *, folder: str) -> None:
        self.name = name
        self.folder = folder_name
        self.names = UniqueNames(by_stem=False)
        self.ids = NumberSet()
        self.images = _Part(folder)
        self.annotations: dict[str, _Part] = {}
        self.has_objects = self.has_keypoints = False

    def close(self) -> None:
        """Removes what was kept on disk."""
        for part in (self.images, *self.annotations.values()):
            part.close()

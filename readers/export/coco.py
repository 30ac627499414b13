"""Writes a dataset as COCO: JSON files, and a folder of images for each split.

    annotations/instances_train.json           objects
    annotations/person_keypoints_train.json    those of classes with keypoints, if there are any
    annotations/captions_train.json            captions, if there are any
    annotations/labels_train.json              classes of images, if there are any
    images/train/...                           the images

The format: https://cocodataset.org/#format-data. An annotation with only a `category_id` is the
class of an image, as in datumaro's `coco_labels`.
"""

from __future__ import annotations

import functools
import itertools
import math
import shutil
import tempfile
from collections.abc import Collection, Iterator
from typing import Any, BinaryIO, ClassVar

import msgspec
import numpy as np

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.readers.export.base import ImageIds, Layout, UniqueNames, strip_layout
from shardbeam.readers.export.images import (
    BOX_KEYS,
    IMAGE_KEYS,
    KEYPOINT_KEYS,
    MASK_KEYS,
    ExportImage,
    runs_decoder,
)
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.examples.geometry.segmentation import format_counts

_BOX_DIGITS = 2
_POINT_DIGITS = 3
_POINT_VALUES = 3
_OBJECTS, _CAPTIONS, _LABELS = "instances", "captions", "labels"
_KEYPOINTS = "person_keypoints"
_FILE_NAME = "{}_{}.json"
# The most bytes that names of annotation files have beside that of the split.
_AROUND_BYTES = len(_FILE_NAME.format(_KEYPOINTS, ""))
# A longer section waits on disk until its file is written.
_MEMORY_BYTES = 1 << 20

_item_decoder = JsonDecoder()


class CocoLayout(Layout):
    """COCO: `annotations/` and `images/`."""

    NAME: ClassVar[str] = "COCO"
    KEYS: ClassVar[frozenset[str]] = (
        IMAGE_KEYS
        | BOX_KEYS
        | KEYPOINT_KEYS
        | {"image/source_id", "image/caption", "image/class/label", "image/class/text"}
        | MASK_KEYS
        | {"image/object/area", "annotation/area", "annotation/image_id", "annotation/id"}
    )
    ENTRIES: ClassVar[tuple[str, ...]] = ("images", "annotations")
    MARKED: ClassVar[tuple[str, str]] = ("annotations", ".json")

    _split: _Split | None = None
    # The last id that was given to an annotation.
    _last_annotation_id = 0

    def begin(self, split: str) -> None:
        """Writes the annotation files of the split before, and begins another."""
        self._end()
        self._image_ids.begin_split()
        self._split = _Split(split, folder=self._folders[split], temporary=self.folder)

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
        key = strip_layout(image.key, split=split.name)
        name = self.unique_name(key, image=image, names=split.names)
        image_id = self._image_ids.give(image.image_id)
        if image.image_id not in ("", str(image_id)):
            self.losses.note(
                "image ids that are not integers or occur twice, renumbered",
                example=image.image_id,
            )
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
        self.losses.note("annotation ids, renumbered from 1", count=objects + len(of_image))
        self.losses.note("licenses and URLs of images")
        return objects

    def finish(self) -> None:
        """Writes the annotation files of the last split."""
        self._end()
        self.losses.note("supercategories of classes", count=len(self.classes.ids))

    @functools.cached_property
    def _folders(self) -> dict[str, str]:
        """`{split: its folder of images, also in the names of its files}`."""
        names = UniqueNames(by_stem=False)
        return {
            split: self.unique_folder(split, names=names, around=_AROUND_BYTES)
            for split in self.splits
        }

    @functools.cached_property
    def _image_ids(self) -> ImageIds:
        return ImageIds()

    def _annotate(self, what: str, values: dict[str, Any], *, split: _Split) -> None:
        """Adds an annotation to a file of the split, with an id that is in no other file."""
        self._last_annotation_id += 1
        split.section(what).add({"id": self._last_annotation_id, **values})

    def _add_object(
        self, item: ObjectAnnotation, *, image: ExportImage, image_id: int, split: _Split
    ) -> bool:
        """Adds an object to its split's file, and returns whether it was added.

        An object whose box ends before it begins is left out.
        """
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
        runs = runs_decoder.decode(item.segmentation) if item.segmentation else None
        if 0 <= item.area < math.inf:
            # The shortest decimal number that is the same 32-bit float as the Example's.
            area = float(str(np.float32(item.area * image.width * image.height)))
        else:
            area = sum(runs.counts[1::2]) if runs else round(width * height, _BOX_DIGITS)
        values |= {"area": area, "iscrowd": int(item.is_crowd)}
        if runs:
            text = format_counts(runs.counts, size=runs.size)
            # `certain`, which only Shardbeam reads, says that the box need not confirm the pixels.
            values["segmentation"] = {"size": runs.size, "counts": text, "certain": True}
            self.losses.note("polygons: masks are written as run lengths (RLE)")
        self._annotate(_OBJECTS, values, split=split)
        if item.keypoints:
            points = list(self._points(item, image=image))
            labelled = sum(visibility > 0 for visibility in points[2::_POINT_VALUES])
            values |= {"keypoints": points, "num_keypoints": labelled}
            # The same id as in the other file, so that readers of both see one object.
            split.section(_KEYPOINTS).add({"id": self._last_annotation_id, **values})
            if labelled:
                split.posed.add(values["category_id"])
        return True

    def _points(self, item: ObjectAnnotation, *, image: ExportImage) -> Iterator[float]:
        for x, y, visibility in zip(*[iter(item.keypoints)] * _POINT_VALUES, strict=True):
            yield round(x * image.width, _POINT_DIGITS)
            yield round(y * image.height, _POINT_DIGITS)
            yield int(visibility)

    def _end(self) -> None:
        """Writes the annotation files of the split that is being written, if there is one."""
        split, self._split = self._split, None
        if split is None:
            return
        if split.has_objects or not split.sections:
            # An empty list says that the images have no objects.
            split.section(_OBJECTS)
        if _KEYPOINTS in split.sections:
            ids = self.classes.ids
            split.posed |= {ids[name] for name in ids if self.classes.skeleton_of(name)}
            # Without a labelled keypoint or a line, nobody knows which classes have keypoints.
            split.posed = split.posed or {*ids.values()}
        for what, section in split.sections.items():
            categories = list(self._categories(split, what=what))
            with self.create(f"annotations/{_FILE_NAME.format(what, split.folder)}") as file:
                info = {"description": self.mark, "contributor": "Shardbeam"}
                file.write(b'{"info":%s,\n"licenses":[],\n' % msgspec.json.encode(info))
                split.images.copy_to(file, name=b"images")
                only = split.posed if what == _KEYPOINTS else None
                section.copy_to(file, name=b"annotations", category_ids=only)
                file.write(b'"categories":%s}\n' % msgspec.json.encode(categories))
        split.close()

    def _categories(self, split: _Split, *, what: str) -> Iterator[dict[str, Any]]:
        for category_id, name in self.classes.by_id().items():
            category: dict[str, Any] = {"id": category_id, "name": name, "supercategory": ""}
            if what == _KEYPOINTS:
                if category_id not in split.posed:
                    continue
                # COCO numbers keypoints from 1.
                skeleton = [[a + 1, b + 1] for a, b in self.classes.skeleton_of(name)]
                category |= {"keypoints": self.classes.keypoints, "skeleton": skeleton}
            yield category


class _Section:
    """A list in a JSON file that is written later: in memory, or on disk if it is long.

    Args:
        folder: Where its temporary file is made.
    """

    def __init__(self, folder: str) -> None:
        self._encoder = msgspec.json.Encoder()
        self._file = tempfile.SpooledTemporaryFile(  # noqa: SIM115  # Closed by `close`.
            max_size=_MEMORY_BYTES, dir=folder
        )
        self._is_empty = True

    def add(self, item: dict[str, Any]) -> None:
        self._file.write(b"\n" if self._is_empty else b",\n")
        self._file.write(self._encoder.encode(item))
        self._is_empty = False

    def copy_to(
        self, file: BinaryIO, *, name: bytes, category_ids: Collection[int] | None = None
    ) -> None:
        """Writes the list to a file, with the items of all categories or of some."""
        file.write(b'"%s":[' % name)
        self._file.seek(0)
        if category_ids is None:
            shutil.copyfileobj(self._file, file)
        else:
            kept = (
                line.rstrip(b",\n")
                for line in itertools.islice(self._file, 1, None)
                if _item_decoder.decode(line.rstrip(b",\n"))["category_id"] in category_ids
            )
            for number, line in enumerate(kept):
                file.write((b",\n" if number else b"\n") + line)
        file.write(b"],\n")

    def close(self) -> None:
        self._file.close()


class _Split:
    """A split that is being written.

    Attributes:
        name: Its name.
        folder: Name of its folder of images, also in the names of its files.
        names: The names of its images.
        images: The section `images` of all its files.
        sections: `{kind of file: its section "annotations"}`.
        has_objects: Whether an Example has the keys of objects.
        posed: Ids of the classes with keypoints: with a labelled one, or a line between two.
    """

    def __init__(self, name: str, *, folder: str, temporary: str) -> None:
        self.name = name
        self.folder = folder
        self.names = UniqueNames(by_stem=False)
        self.images = _Section(temporary)
        self.sections: dict[str, _Section] = {}
        self.has_objects = False
        self.posed: set[int] = set()
        self._temporary = temporary

    def section(self, kind: str) -> _Section:
        """Returns the annotations of a kind of file, which is then written."""
        if kind not in self.sections:
            self.sections[kind] = _Section(self._temporary)
        return self.sections[kind]

    def close(self) -> None:
        """Removes the temporary files."""
        for section in (self.images, *self.sections.values()):
            section.close()

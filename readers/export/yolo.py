"""Writes a dataset as YOLO, in the folders that Ultralytics expects.

    data.yaml                                  classes, splits, and the shape of keypoints
    images/train/...                           the images
    labels/train/...                           a text file for each, empty if it has no objects

The format: https://docs.ultralytics.com/datasets/detect/, /segment/ and /pose/. If one line of a
file is a polygon, all are read as polygons there, a box as one of two points. Images without
objects are backgrounds, with or without an empty file; only the empty file shows that the image was
looked at.
"""

from __future__ import annotations

import functools
import os
import posixpath
from collections.abc import Collection, Iterator
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from shardbeam.configs.yaml_text import dump_yaml
from shardbeam.readers.export.base import Layout, UniqueNames, split_names, strip_layout
from shardbeam.readers.export.images import (
    BOX_KEYS,
    IMAGE_KEYS,
    KEYPOINT_KEYS,
    MASK_KEYS,
    OBJECT_KEYS,
    ExportImage,
    runs_decoder,
)
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ObjectAnnotation
from shardbeam.transforms.examples.geometry.boxes import Box
from shardbeam.transforms.examples.geometry.mask_crops import MaskCrop, crop_runs, read_counts

_DATA_FILE = "data.yaml"
_DIGITS = 6
_BOX_VALUES, _POINT_VALUES = 5, 3
# Readers of YOLO accept keypoints outside of the image up to this, in fractions of the image.
_TOLERANCE = 0.01
# Readers find labels by the last folder `images` in an image's path, so no folder below it may have
# a name like these.
_RESERVED = frozenset({"images", "image", "labels", "label", "annotations"})
_LABELS = ".txt"
_KNOWN_SPLITS = ("train", "val", "test")
# Keys of data.yaml with another meaning, so no split may have these names.
_DATA_KEYS = frozenset(
    {"path", "names", "nc", "channels", "kpt_shape", "kpt_names", "flip_idx", "download"}
)
_NOT_LABELLED = ("0",) * _POINT_VALUES
# A box that differs from that of its mask by more than this is counted.
_BOX_TOLERANCE_PX = 1.0
_DETECT, _SEGMENT, _POSE = "detect", "segment", "pose"
# What a task writes beside the boxes: its keys, and their name.
_OF_TASK = {_SEGMENT: (MASK_KEYS, "masks"), _POSE: (KEYPOINT_KEYS, "keypoints")}
# The most points of an outline that parts and holes are joined to.
MAX_JOINED_POINTS = 20_000

# (points, 2): x and y.
Ring: TypeAlias = npt.NDArray[np.int64]


class YoloLayout(Layout):
    """YOLO: `images/`, `labels/` and `data.yaml`.

    A file of labels holds boxes, boxes with keypoints or polygons, so an export has one task. By
    default, that is keypoints if the Examples have some, or else polygons if they have masks.
    """

    NAME: ClassVar[str] = "YOLO"
    KEYS: ClassVar[frozenset[str]] = IMAGE_KEYS | BOX_KEYS
    TASKS: ClassVar[tuple[str, ...]] = (_DETECT, _SEGMENT, _POSE)
    ENTRIES: ClassVar[tuple[str, ...]] = ("images", "labels", _DATA_FILE)
    MARKED: ClassVar[tuple[str, str]] = ("", _DATA_FILE)

    _split = ""
    _has_objects = _has_masks = False
    # The numbers of keypoints that objects have.
    _point_counts: frozenset[int] = frozenset()

    @functools.cached_property
    def _writes(self) -> str:
        """The task."""
        if self.task is not None:
            return self.task
        has_masks, has_points = (
            not keys.isdisjoint(self.known_keys) for keys, _ in _OF_TASK.values()
        )
        return _SEGMENT if has_masks and not has_points else _POSE

    @property
    def keys(self) -> Collection[str]:
        """Default keys of Examples that it writes."""
        more, _ = _OF_TASK.get(self._writes, ((), ""))
        return self.KEYS.union(more)

    @property
    def title(self) -> str:
        """Its name, and its task."""
        is_plain = self._writes == _POSE and not self.classes.keypoints
        return f"{self.NAME}, task {_DETECT if is_plain else self._writes}"

    @classmethod
    def check(cls, keys: Collection[str], *, dataset: str, task: str | None) -> None:
        """Checks that Examples have objects, and what the task writes of them."""
        needed, what = _OF_TASK.get(task or "", (frozenset(keys), ""))
        if keys and needed.isdisjoint(keys):
            raise InputError(
                uri=dataset, problem=f"has no {what}, which --task {task} writes; leave it out"
            )
        if OBJECT_KEYS.isdisjoint(keys):
            raise InputError(
                uri=dataset,
                problem="has no objects, and YOLO describes nothing else; --format coco writes "
                "classes of images and captions",
            )

    def begin(self, split: str) -> None:
        """Begins a split."""
        self._split = split
        self._folder = self._folders[split]
        self._names = UniqueNames(by_stem=True)

    def add(self, image: ExportImage) -> int:
        """Writes an image and its labels."""
        name = self._name(image)
        lines = [line for item in image.objects if (line := self._line(item, image=image))]
        text = "".join(f"{line}\n" for line in lines)
        # Labels go first, so that no image is there without them.
        path = f"labels/{self._folder}/{posixpath.splitext(name)[0]}{_LABELS}"
        self.write(path, text.encode())
        self.write(f"images/{self._folder}/{name}", image.data)
        self._has_objects |= image.has_objects
        return len(lines)

    def finish(self) -> None:
        """Writes `data.yaml`."""
        keypoints = list(self.classes.keypoints) if self._writes == _POSE else []
        seen = {
            *(OBJECT_KEYS if self._has_objects else ()),
            *(MASK_KEYS if self._has_masks else ()),
            *(KEYPOINT_KEYS if keypoints else ()),
        }
        self.check(seen, dataset=self.dataset, task=self.task)
        if self._point_counts - {len(keypoints)}:
            self._pad_keypoints(len(keypoints))
        names = sorted(self.classes.numbers.items(), key=lambda item: item[1])
        data: dict[str, Any] = {
            **{folder: f"images/{folder}" for folder in self._folders.values()},
            "nc": len(names),
            "names": {number: name for name, number in names},
        }
        if keypoints:
            data["kpt_shape"] = [len(keypoints), _POINT_VALUES]
            # A list for each class, because YAML would write a shared list as an alias.
            data["kpt_names"] = {number: list(keypoints) for _, number in names}
        text = dump_yaml(data)
        self.write(_DATA_FILE, f"# {self.mark}\n{text}".encode())

    def _pad_keypoints(self, points: int) -> None:
        """Gives all objects the number of keypoints that `kpt_shape` promises.

        The number is only known when all Examples have been read. Added keypoints are not labelled.
        """
        values = _BOX_VALUES + points * _POINT_VALUES
        for root, _, names in os.walk(os.path.join(self.folder, "labels")):
            for name in names:
                with open(os.path.join(root, name), "r+", encoding="utf-8") as file:
                    lines = [line.split() for line in file]
                    if all(len(line) == values for line in lines):
                        continue
                    file.seek(0)
                    for line in lines:
                        missing = (values - len(line)) // _POINT_VALUES
                        file.write(f"{' '.join([*line, *_NOT_LABELLED * missing])}\n")

    @functools.cached_property
    def _folders(self) -> dict[str, str]:
        """`{split: its folder}`: `train`, `val` or `test` if it is one of these."""
        folders = {split: split for split in self.splits if split in _KNOWN_SPLITS}
        for split in self.splits:
            known = next((name for name in _KNOWN_SPLITS if name in split_names(split)), "")
            if not known and len(self.splits) == 1:
                known = "train"
            if known and known not in folders.values():
                folders[split] = known
        names = UniqueNames(by_stem=False)
        for name in (*folders.values(), *_DATA_KEYS, *_RESERVED):
            names.take(name, number=0)
        return {
            split: folders.get(split) or self.unique_folder(split, names=names)
            for split in self.splits
        }

    def _name(self, image: ExportImage) -> str:
        key = strip_layout(image.key, split=self._split)
        while key.partition("/")[0].casefold() in _RESERVED and "/" in key:
            key = key.partition("/")[2]
        # A folder may have the name of the label file of another image.
        reserved = _RESERVED | {_LABELS}
        return self.unique_name(key, image=image, names=self._names, reserved=reserved)

    def _line(self, item: ObjectAnnotation, *, image: ExportImage) -> str:
        """Returns the line of an object; empty if it is left out."""
        if item.is_crowd:
            self.losses.note("crowds, left out", example=image.key)
            return ""
        if self._writes == _SEGMENT:
            values = self._polygon(item, image=image)
        else:
            values = self._box(item, image=image)
            if values and self._writes == _POSE:
                values += self._points(item, image=image)
        return " ".join([str(self.classes.number_of(item.label)), *values]) if values else ""

    def _clip(self, item: ObjectAnnotation, *, image: ExportImage) -> Box | None:
        """Returns the part of a box that is in the image; None if it has no area."""
        xmin, ymin, xmax, ymax = (min(max(edge, 0.0), 1.0) for edge in item.bbox)
        if xmin >= xmax or ymin >= ymax:
            self.losses.note("boxes without area in the image, left out", example=image.key)
            return None
        if (xmin, ymin, xmax, ymax) != item.bbox:
            self.losses.note("boxes that reach beyond the image, clipped", example=image.key)
        return xmin, ymin, xmax, ymax

    def _box(self, item: ObjectAnnotation, *, image: ExportImage) -> list[str]:
        box = self._clip(item, image=image)
        if box is None:
            return []
        xmin, ymin, xmax, ymax = box
        return [*map(_fraction, ((xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin))]

    def _points(self, item: ObjectAnnotation, *, image: ExportImage) -> list[str]:
        values: list[str] = []
        self._point_counts |= {len(item.keypoints) // _POINT_VALUES}
        for x, y, visibility in zip(*[iter(item.keypoints)] * _POINT_VALUES, strict=True):
            if not visibility:
                values += _NOT_LABELLED
            elif max(abs(x - 0.5), abs(y - 0.5)) > 0.5 + _TOLERANCE:
                self.losses.note("keypoints outside of the image, not labelled", example=image.key)
                values += _NOT_LABELLED
            else:
                values += [_fraction(x), _fraction(y), str(int(visibility))]
        return values

    def _polygon(self, item: ObjectAnnotation, *, image: ExportImage) -> list[str]:
        """Returns the outline of an object's mask, or else of its box."""
        crop = None
        if item.segmentation:
            runs = runs_decoder.decode(item.segmentation)
            height, width = runs.size
            crop = crop_runs(read_counts(runs.counts), height=height)
        if crop is None:
            box = self._clip(item, image=image)
            if box is None:
                return []
            self.losses.note("objects without a mask, outlined by their box", example=image.key)
            xmin, ymin, xmax, ymax = box
            return [*map(_fraction, (xmin, ymin, xmax, ymin, xmax, ymax, xmin, ymax))]
        self._has_masks = True
        self.losses.note("polygons: outlines are traced from the pixels of masks")
        box_px = np.multiply(item.bbox, (width, height) * 2)
        if np.abs(box_px - crop.box).max() > _BOX_TOLERANCE_PX:
            self.losses.note(
                f"boxes that differ from their mask's by more than {_BOX_TOLERANCE_PX:g} px",
                example=image.key,
            )
        outline, left_out = trace_outline(crop)
        self.losses.note("small parts and holes of masks", count=left_out, example=image.key)
        return [*map(_fraction, (outline / (width, height)).ravel().tolist())]


def _fraction(value: float) -> str:
    # Adding 0 makes -0 positive.
    return f"{round(value, _DIGITS) + 0.0:.{_DIGITS}f}".rstrip("0").rstrip(".")


def trace_outline(crop: MaskCrop) -> tuple[Ring, int]:
    """Returns the outline of a mask as one polygon, from which the same pixels can be drawn.

    The corners of the polygon are those of pixels, so that no pixel is lost by rounding. Pixels
    that touch at a corner belong to one part, because that leaves the fewest parts. YOLO has one
    polygon for an object: further parts, and holes, are joined to it by pairs of equal lines, which
    enclose no pixel.

    Args:
        crop: The mask, with a pixel that is not 0 in each column and row at its border.

    Returns:
        The polygon, and how many parts and holes of the mask are not in it.
    """
    outline, *others = sorted(_trace_rings(crop.pixels), key=_area, reverse=True)
    left_out = 0
    for ring in others:
        if len(outline) + len(ring) > MAX_JOINED_POINTS:
            left_out += 1
            continue
        near = 0
        for _ in range(2):
            joint = _nearest(outline, ring[near])
            near = _nearest(ring, outline[joint])
        parts = outline[: joint + 1], ring[near:], ring[: near + 1], outline[joint:]
        outline = np.concatenate(parts)
    return outline + np.array((crop.left, crop.top)), left_out


def _nearest(ring: Ring, point: Ring) -> int:
    return int(((ring - point) ** 2).sum(axis=1).argmin())


def _area(ring: Ring) -> int:
    """Returns the area inside of a ring whose lines are horizontal and vertical in turn."""
    xs, ys = ring[::2].T
    return abs(int((xs * (ys - np.roll(ys, 1))).sum()))


def _trace_rings(pixels: npt.NDArray[np.uint8]) -> Iterator[Ring]:
    """Yields the corners of each part and each hole, in order around it.

    A corner of a ring lies where one or three of four pixels are set. Where two are that touch at a
    corner, two corners lie at one place. The corners in a row are the ends of horizontal lines, two
    and two, and those in a column the ends of vertical ones.
    """
    padded = np.pad(pixels != 0, 1)
    above, below = padded[:-1], padded[1:]
    falling = above[:, :-1] & below[:, 1:] & ~(above[:, 1:] | below[:, :-1])
    rising = above[:, 1:] & below[:, :-1] & ~(above[:, :-1] | below[:, 1:])
    is_odd = above[:, :-1] ^ above[:, 1:] ^ below[:, :-1] ^ below[:, 1:]
    ys, xs = np.nonzero(is_odd | falling | rising)
    copies = np.where(is_odd[ys, xs], 1, 2)
    is_falling = np.repeat(falling[ys, xs], copies)
    ys, xs = np.repeat(ys, copies), np.repeat(xs, copies)
    # Of two corners at one place, the first ends the line from the left. Of its column's lines, it
    # ends the one from above if the pixels rise, so that the two pixels are in one ring.
    order = np.lexsort((np.arange(len(xs)) * np.where(is_falling, -1, 1), ys, xs))
    beside = np.arange(len(xs)) ^ 1
    across = np.empty_like(order)
    across[order] = order[beside]
    points = np.stack([xs, ys], axis=1)
    to_side, up_or_down = beside.tolist(), across.tolist()
    is_done = bytearray(len(xs))
    for start in range(len(xs)):
        if is_done[start]:
            continue
        ring = []
        corner = start
        while not is_done[corner]:
            for other in (corner, to_side[corner]):
                is_done[other] = True
                ring.append(other)
            corner = up_or_down[other]
        yield points[ring]

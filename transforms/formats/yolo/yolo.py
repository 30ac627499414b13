"""YOLO: a text file of boxes, polygons or poses for each image, and a file that names the classes.

The format: a line for each object, `class cx cy w h`, `class x1 y1 x2 y2 x3 y3 …`, or a box
followed by keypoints `x y` or `x y visibility`, with coordinates in fractions of the image
(https://docs.ultralytics.com/datasets/detect/, /segment/ and /pose/).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.schema import PredefinedSplits
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import present_kinds
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    encode_annotations,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.geometry.boxes import box_around
from shardbeam.transforms.formats.annotation_file import drop_outlines, foreign_content
from shardbeam.transforms.formats.base import Format, Kind, Match, Place, Role
from shardbeam.transforms.formats.names import is_hidden, is_image_name, normalize_key
from shardbeam.transforms.formats.recognition import Folder, Recognized
from shardbeam.transforms.formats.yolo.layout import (
    LayoutFinder,
    YoloLayout,
    find_roots,
    is_labels,
    join_of_image,
    join_of_labels,
    labels_of_folder,
)
from shardbeam.transforms.storage.base import Storage

_NUMBER = re.compile(rb"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_VISIBILITY = re.compile(rb"[012](\.0*)?")
_CLASS = re.compile(rb"([0-9]{1,9})(\.0*)?")
# The beginning of a file of labels: a class, and at least four numbers, or fractions with commas or
# semicolons, which the parser refuses.
LABELS = re.compile(
    rb"\s*[0-9]{1,9}(\.0*)?"
    rb"(([ \t]+[-+.0-9eE]+){4,}|([,;][ \t]*[01]?\.[0-9]+){4,}|([ \t]+0,[0-9]+){4,})"
    rb"[ \t\r]*(\n|\Z)"
)
# A line of a class and at least three points.
_POLYGON = re.compile(
    rb"^[ \t]*[0-9]{1,9}(\.0*)?([ \t]+[-+.0-9eE]+[ \t]+[-+.0-9eE]+){3,}[ \t]*\r?$", re.MULTILINE
)
# Because tools round, boxes at the border may reach beyond it by this much.
_TOLERANCE = 0.01
# Centre and size have six digits, so an edge may be wrong by three quarters of the last one.
_ROUNDING = 1e-6

_BOX_VALUES = 5
# Detectors write a confidence after the box.
_BOX_AND_CONFIDENCE = 6
# A class and three points.
_MIN_POLYGON_VALUES = 7
# Without the class: the corners of an oriented box.
_CORNER_VALUES = 8

_encoder = msgspec.json.Encoder()


class Pose(NamedTuple):
    """The number of an object's keypoints, and the number of values of each."""

    points: int
    point_values: int


class YoloFormat(Format, frozen=True, kw_only=True):
    """YOLO: `images/` and `labels/`, with `data.yaml` or `classes.txt`.

    Class 0 of the files gets the id 1, because 0 is the background to readers of the TF Object
    Detection API.

    Attributes:
        root: The folder of `images/` and `labels/`; by default the folder of `data`.
        data: The `data.yaml`, Darknet's `obj.data`, or a file with a class name on each line; by
            default the one in the root.
        splits: The predefined splits that are used; by default all.
        _masks: Whether objects carry their polygons.
        _layout: The classes, splits and folders; `resolve` finds them.
    """

    SOME_OF = ("root", "data")
    SUMMARY = "YOLO text files: boxes, segments and poses"
    ROOTS = ("root",)
    CHOOSES_SPLITS = True
    lists_annotations = True

    root: Annotated[Location, named("folder of images/ and labels/", metavar="DIR")] | None = None
    data: (
        Annotated[
            Location,
            named("file that names classes and splits (default: the data.yaml in the root)"),
        ]
        | None
    ) = None
    splits: PredefinedSplits | None = None
    match: Match = "path"
    _masks: bool = False
    _layout: YoloLayout = YoloLayout()

    def __post_init__(self) -> None:
        self.check_some()

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes files of labels, and finds the folder of the file that names the classes."""
        labels = folder.alike(".txt", are_alike=lambda heads: any(map(LABELS.match, heads)))
        if not labels:
            return None
        files = [
            path for paths in labels.values() for path in paths if is_labels(path, beside=True)
        ]
        what = counted(len(files), "file of labels", "files of labels")
        if not folder.images:
            problem = "the images are not in this folder: copy them beside the labels"
            return Recognized(what=what, problem=problem)
        problem = ""
        for root in find_roots(folder.files):
            inside = f"{root}/" if root else ""
            outside = [each for each in labels if not f"{each}/".startswith(inside)]
            if outside:
                problem = problem or f"labels are in {', '.join(outside)}, too"
                continue
            try:
                made = cls(root=folder.location(root)).resolve()
                made.predefined_splits()
            except InputError as error:
                problem = problem or str(error)
            else:
                heads = (folder.head(path) for paths in labels.values() for path in paths[:3])
                outlines = Kind.KEYPOINTS not in made.kinds and any(map(_POLYGON.search, heads))
                sources = {"": {"root": folder.uri(root)}}
                return Recognized(what=what, sources=sources, outlines=outlines)
        return Recognized(what=what, problem=problem)

    @property
    def kinds(self) -> frozenset[Kind]:
        """Objects, their keypoints if they have any, and their masks if these are wanted."""
        more = {Kind.INSTANCE_MASKS: self._masks, Kind.KEYPOINTS: self._layout.keypoints}
        return frozenset({Kind.DETECTION}) | present_kinds(more)

    @functools.cached_property
    def _names(self) -> Mapping[int, str]:
        return dict(self._layout.names)

    @functools.cached_property
    def _pose(self) -> Pose | None:
        keypoints, point_values = self._layout.keypoints, self._layout.point_values
        return Pose(len(keypoints[0]), point_values) if keypoints else None

    @functools.cached_property
    def _label_folders(self) -> Mapping[str, str]:
        """`{folder of labels: split}`."""
        return {labels_of_folder(path): split for path, split in self._layout.folders.items()}

    def roots(self) -> tuple[str, ...]:
        """Returns the root, which by default is the folder of `data`."""
        return (self.root or (self.data or "").rpartition("/")[0] or "/",)

    def resolve(self) -> YoloFormat:
        """Finds classes, splits and labels.

        Raises:
            InputError: As for `LayoutFinder`.
        """
        finder = LayoutFinder(self.roots()[0], data=self.data, labels_anywhere=self.match != "path")
        layout = finder.find(self.splits)
        return msgspec.structs.replace(self, _layout=layout)

    def predefined_splits(self) -> Sequence[str]:
        """Returns the splits that the `data.yaml` names, or the folders named like splits.

        Raises:
            InputError: They cannot be found.
        """
        if self._layout.problem is not None:
            uri, place, problem = self._layout.problem
            raise InputError(uri=uri, place=place, problem=problem)
        return self._layout.splits

    def place(self, path: str, *, root: int) -> Place:
        """Distinguishes images and labels by their folders and extensions."""
        key = normalize_key(path)
        if key in self._layout.known:
            return Place(role=Role.OTHER)
        if is_labels(key, beside=self._layout.beside):
            return Place(role=Role.ANNOTATION, join=join_of_labels(key))
        if is_labels(key, beside=True):
            return Place(role=Role.BESIDE, join=join_of_labels(key))
        if is_image_name(key) and not is_hidden(key):
            return Place(role=Role.IMAGE, key=key, join=join_of_image(key))
        return Place(role=Role.IMAGE, key=key, join=key)

    def split_listed(self, key: str) -> str:
        """Returns the split whose folder holds an image."""
        return _split_of(key, folders=self._layout.folders)

    def annotation_files(self) -> Sequence[str]:
        """Returns the files that name the classes, then the lists of the splits."""
        return [*self._layout.files, *(item.file.uri for item in self._layout.lists)]

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Declares the classes, or puts the images of a list into its split."""
        if file_index == 0:
            keypoints = self._layout.keypoints or itertools.repeat(())
            for (class_index, name), own in zip(self._layout.names, keypoints, strict=False):
                yield Category(
                    name=name,
                    source_id=class_index + 1,
                    origin=self._layout.files[0],
                    keypoints=own,
                )
        if file_index < len(self._layout.files):
            return
        item = self._layout.lists[file_index - len(self._layout.files)]
        for line, name in item.lines():
            key = join_of_image(normalize_key(item.image_path(name)))
            yield item.entry(key, line=line, file_index=file_index)

    def read_listed(self, data: bytes, *, path: str, root: int) -> Iterator[AnnotationEntry]:
        """Parses the labels of one image.

        Raises:
            InputError: The file is not a file of labels.
        """
        objects, corrections = parse_yolo_labels(data, names=self._names, pose=self._pose, uri=path)
        key = join_of_labels(normalize_key(path))
        annotations = ImageAnnotations(
            image_id="", objects=tuple(objects), normalized=True, **corrections.fields()
        )
        annotations, outlines = drop_outlines(annotations, unless=self._masks)
        yield AnnotationEntry(
            key=key,
            annotations=encode_annotations(annotations),
            origin=path,
            split=_split_of(key, folders=self._label_folders),
            outlines=outlines,
        )


def _split_of(path: str, *, folders: Mapping[str, str]) -> str:
    return next(
        (split for folder, split in folders.items() if not folder or path.startswith(f"{folder}/")),
        "",
    )


def parse_yolo_labels(
    data: bytes, *, names: Mapping[int, str], pose: Pose | None = None, uri: str
) -> tuple[list[ObjectAnnotation], Corrections]:
    """Parses a label file.

    Args:
        data: Its content.
        names: `{class: name}`.
        pose: The keypoints after each box; None for files of boxes and polygons.
        uri: The file, for errors.

    Returns:
        The objects in the file's order, in fractions of the image, with a segmentation if they
        have a polygon; and the corrections.

    Raises:
        InputError: A line has a wrong number of values, a value that is not a number, a class
            without a name, or a coordinate outside the image. Corners of an oriented box may be
            outside if its centre is inside.
    """
    corrections = Corrections()
    # {a line's values: its object}
    objects: dict[tuple[bytes, ...], ObjectAnnotation] = {}
    for number, line in enumerate(data.removeprefix(b"\xef\xbb\xbf").splitlines(), 1):
        values = tuple(line.split())
        if not values:
            continue
        if values in objects:
            text = b" ".join(values).decode("ascii", "replace")
            corrections.note(Correction.DUPLICATE_ANNOTATION_DROPPED, text)
            continue
        try:
            if pose is None:
                objects[values] = _object(values, names=names, corrections=corrections)
            else:
                objects[values] = _posed_object(values, names=names, pose=pose)
        except ValueError as error:
            raise InputError(
                uri=uri,
                place=f"line {number}",
                problem=foreign_content(data) or _separator_problem(line) or str(error),
            ) from error
    return list(objects.values()), corrections


def _separator_problem(line: bytes) -> str:
    """Describes commas and semicolons in a line; empty if there are none."""
    for character, name in ((b";", "semicolons"), (b",", "commas")):
        if character not in line:
            continue
        if re.match(rb"\s*[0-9.]+[ \t]+[0-9]+,[0-9]", line):
            return "the numbers have decimal commas: write points, such as 0.5 for 0,5"
        return f"the values are separated by {name}: replace them by blanks, as YOLO has them"
    return ""


def _object(
    values: Sequence[bytes], *, names: Mapping[int, str], corrections: Corrections
) -> ObjectAnnotation:
    count = len(values)
    if count not in (_BOX_VALUES, _BOX_AND_CONFIDENCE) and (
        count < _MIN_POLYGON_VALUES or count % 2 == 0
    ):
        raise ValueError(
            f"expected `class cx cy w h`, or a class and at least 3 points, got {count} values"
        )
    label = _label(values[0], names=names)
    coordinates = _fractions(values[1:])
    if count >= _MIN_POLYGON_VALUES:
        return _polygon(coordinates, label=label)
    if count == _BOX_AND_CONFIDENCE:
        corrections.note(Correction.CONFIDENCE_DROPPED, coordinates[-1])
    return ObjectAnnotation(label=label, bbox=_box(coordinates))


def _posed_object(
    values: Sequence[bytes], *, names: Mapping[int, str], pose: Pose
) -> ObjectAnnotation:
    if len(values) not in (_BOX_VALUES, _BOX_VALUES + pose.points * pose.point_values):
        raise ValueError(
            f"expected `class cx cy w h`, alone or with {pose.points} keypoints of "
            f"{pose.point_values} values each, got {len(values)} values"
        )
    keypoints: list[float] = []
    for first in range(_BOX_VALUES, len(values), pose.point_values):
        x, y = _fractions(values[first : first + 2])
        # Without visibilities, keypoints that are not labelled are at 0 0.
        visibility = 2.0 if x or y else 0.0
        if pose.point_values == 3:
            visibility = _visibility(values[first + 2])
        keypoints += (x, y, visibility)
    return ObjectAnnotation(
        label=_label(values[0], names=names),
        bbox=_box(_fractions(values[1:_BOX_VALUES])),
        keypoints=tuple(keypoints),
    )


def _visibility(value: bytes) -> float:
    if not _VISIBILITY.fullmatch(value):
        raise ValueError(f"expected a visibility (0, 1 or 2), got {_shown(value)}")
    return float(value)


def _box(values: Sequence[float]) -> tuple[float, float, float, float]:
    x, y, width, height = values[:4]
    # One that rounding has made negative is no box whose corners are exchanged.
    width, height = max(width, 0.0), max(height, 0.0)
    return (
        _edge(x - width / 2),
        _edge(y - height / 2),
        _edge(x + width / 2),
        _edge(y + height / 2),
    )


def _edge(value: float) -> float:
    """Moves an edge onto the image's border if only rounding has put it outside."""
    nearest = 0.0 if value < 0.5 else 1.0
    over = -value if value < 0.5 else value - 1
    return nearest if 0 < over <= _ROUNDING else value


def _polygon(coordinates: list[float], *, label: str) -> ObjectAnnotation:
    xs, ys = coordinates[0::2], coordinates[1::2]
    # The shoelace formula, with a line from the last point to the first.
    doubled = sum(
        x * next_y - next_x * y
        for x, y, next_x, next_y in zip(xs, ys, [*xs[1:], xs[0]], [*ys[1:], ys[0]], strict=True)
    )
    return ObjectAnnotation(
        label=label,
        bbox=box_around(coordinates),
        area=abs(doubled) / 2,
        segmentation=_encoder.encode([coordinates]),
    )


def _label(value: bytes, *, names: Mapping[int, str]) -> str:
    match = _CLASS.fullmatch(value)
    if match is None:
        raise ValueError(f"expected a class (0, 1, …), got {_shown(value)}")
    name = names.get(int(match[1]))
    if name is None:
        raise ValueError(f"class {int(match[1])} has no name: {len(names)} classes are named")
    return name


def _fractions(values: Sequence[bytes]) -> list[float]:
    numbers = [_number(value) for value in values]
    # The corners of an oriented box may be outside the image; its centre may not.
    is_oriented_box = len(numbers) == _CORNER_VALUES
    if is_oriented_box and all(0 <= sum(numbers[axis::2]) / 4 <= 1 for axis in (0, 1)):
        return numbers
    for number, value in zip(numbers, values, strict=True):
        if not -_TOLERANCE <= number <= 1 + _TOLERANCE:
            raise ValueError(f"expected a fraction of the image, from 0 to 1, got {_shown(value)}")
    return numbers


def _number(value: bytes) -> float:
    if not _NUMBER.fullmatch(value):
        raise ValueError(f"expected a number, got {_shown(value)}")
    return float(value)


def _shown(value: bytes) -> str:
    return repr(value[:40].decode("utf-8", "backslashreplace"))

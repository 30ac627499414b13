"""LabelMe: a JSON file for each image, with shapes, flags, and often the picture itself.

The format: https://github.com/wkentaro/labelme (`labelme/label_file.py`, `labelme/utils/shape.py`).
"""

from __future__ import annotations

import codecs
import functools
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, TypeAlias

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import DECODING_ERRORS, InputError, RejectedError
from shardbeam.transforms.core.kinds import present_kinds
from shardbeam.transforms.core.labels import check_class_name
from shardbeam.transforms.core.reasons import Correction, Exclusion, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    Coding,
    ImageAnnotations,
    ImageRef,
    ListedImage,
    ObjectAnnotation,
    encode_annotations,
)
from shardbeam.transforms.core.text import counted, describe_base64
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.examples.geometry.boxes import Box, Size, box_around
from shardbeam.transforms.examples.geometry.segmentation import (
    MAX_MASK_PIXELS,
    mask_object,
    outline_ellipse,
)
from shardbeam.transforms.formats.annotation_file import (
    classes_in,
    count_replaced,
    decode_json,
    defect_entry,
    drop_outlines,
    lost_classes,
    repeated_key_within,
    replace_surrogates,
    with_replaced,
)
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.names import (
    is_hidden,
    is_split_name,
    key_problem,
    normalize_key,
    without_extension,
)
from shardbeam.transforms.formats.parsing.root_files import RootFiles, common_folder
from shardbeam.transforms.formats.recognition import Folder, Recognized, are_most
from shardbeam.transforms.formats.split_folders import (
    TopFolderFormat,
    TopFolders,
    sort_tops,
    top_folder,
)
from shardbeam.transforms.images.mask_file import read_indices
from shardbeam.transforms.images.png import scan_png
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.image_bytes import decode_base64, read_bytes

# Puts the shapes of a LabelMe file together as objects with outlines and keypoints.

# A line or a point has no area.
_WITHOUT_BOX = frozenset({"line", "linestrip", "point", "points"})
# LabelMe's own names that are not classes.
NO_CLASSES = frozenset({"__ignore__", "_background_"})
# X-AnyLabeling's turned rectangles, given by their corners.
_ROTATION = "rotation"
_CIRCLE_POINTS = 64
# An object's identity: its label and its group, or its position in the file.
_Identity: TypeAlias = tuple[object, ...]
_Point: TypeAlias = tuple[float, float]
_encoder = msgspec.json.Encoder()


class Shape(msgspec.Struct):
    """A shape of a file, as LabelMe writes it."""

    label: str
    points: list[tuple[float, float]]
    shape_type: str | None = None
    group_id: int | str | None = None
    mask: str | None = None


class Shapes:
    """Puts the shapes of one file together.

    Outlines with the same label and the same group are parts of one object. Points that are named
    like keypoints belong to the one object of their group or, without a group, to the one object
    that contains them.

    Attributes:
        corrections: What was left out.
    """

    def __init__(self, keypoints: Sequence[str]) -> None:
        self.corrections = Corrections()
        self._keypoints = keypoints
        self._objects: dict[_Identity, ObjectAnnotation] = {}
        self._outlines: dict[_Identity, list[list[float]]] = {}
        # {group: its objects}, in order
        self._groups: dict[object, dict[_Identity, None]] = {}
        # {group: {keypoint: where it is}}
        self._points: dict[object, dict[str, _Point]] = {}
        # The keypoints without a group, each with its label.
        self._loose: list[tuple[str, _Point]] = []

    def add(self, shape: Shape, *, index: int, size: Size) -> None:
        """Adds a shape: as a keypoint, as an object, or as a part of one.

        Raises:
            ValueError: The shape lacks what it needs, or repeats a keypoint of its group.
            RejectedError: Its mask cannot be read.
        """
        label = " ".join(shape.label.split())
        item, outline = _read_shape(shape, label=label, size=size)
        is_in_group = shape.group_id is not None
        if label in NO_CLASSES:
            self.corrections.note(Correction.OBJECT_OF_EXCLUDED_LABEL_DROPPED, label)
        elif shape.shape_type == "point" and label in self._keypoints:
            if is_in_group:
                self._add_keypoint(shape, label=label)
            else:
                self._loose += ((label, point) for point in shape.points)
        elif item is None:
            self.corrections.note_lost(label, shape.shape_type or "polygon")
        else:
            is_part = outline is not None and is_in_group
            identity: _Identity = (label, shape.group_id) if is_part else (index,)
            if identity in self._objects:
                box = box_around((*self._objects[identity].bbox, *item.bbox))
                item = msgspec.structs.replace(item, bbox=box, area=-1.0)
            if outline is not None:
                self._outlines.setdefault(identity, []).append(outline)
            if shape.shape_type == _ROTATION:
                self.corrections.note(Correction.BOX_TURNED, outline, item.bbox)
            self._objects[identity] = item
            self._groups.setdefault(shape.group_id, {})[identity] = None

    def _add_keypoint(self, shape: Shape, *, label: str) -> None:
        known = self._points.setdefault(shape.group_id, {})
        if label in known or len(shape.points) > 1:
            raise ValueError(f"{label!r} occurs twice in group {shape.group_id!r}")
        known[label] = shape.points[0]

    def objects(self) -> list[ObjectAnnotation]:
        """Returns the objects with their outlines and keypoints.

        Raises:
            ValueError: A group has keypoints and several objects.
        """
        found = dict(self._objects)
        for identity, outlines in self._outlines.items():
            segmentation = _encoder.encode(outlines)
            found[identity] = msgspec.structs.replace(found[identity], segmentation=segmentation)
        for identity, points in self._attached_points().items():
            keypoints = self._keypoint_values(points)
            found[identity] = msgspec.structs.replace(found[identity], keypoints=keypoints)
        return list(found.values())

    def _attached_points(self) -> dict[_Identity, dict[str, _Point]]:
        """Finds the keypoints of each object, and counts those that belong to none."""
        attached: dict[_Identity, dict[str, _Point]] = {}
        for group, points in self._points.items():
            owners = list(self._groups.get(group, ()))
            if len(owners) > 1:
                raise ValueError(
                    f"group {group!r} has keypoints and {len(owners)} objects, expected one"
                )
            attached |= dict.fromkeys(owners, points)
            for name in () if owners else points:
                self.corrections.note(Correction.KEYPOINT_IN_NO_OBJECT_DROPPED, name)
        found: dict[tuple[_Identity, str], list[_Point]] = {}
        for name, point in self._loose:
            owners = self._owners(point)
            if len(owners) == 1:
                found.setdefault((owners[0], name), []).append(point)
            elif owners:
                self.corrections.note(Correction.KEYPOINT_IN_SEVERAL_OBJECTS_DROPPED, name)
            else:
                self.corrections.note(Correction.KEYPOINT_IN_NO_OBJECT_DROPPED, name)
        for (identity, name), places in found.items():
            if len(places) == 1 and name not in attached.get(identity, ()):
                attached.setdefault(identity, {})[name] = places[0]
                continue
            for _ in places:
                self.corrections.note(Correction.KEYPOINT_REPEATED_DROPPED, name)
        return attached

    def _owners(self, point: _Point) -> list[_Identity]:
        """Returns the objects whose boxes contain a point; of several, those whose outlines do."""
        owners = [each for each, item in self._objects.items() if _is_in_box(point, item.bbox)]
        if len(owners) > 1:
            owners = [
                each
                for each in owners
                if each not in self._outlines
                or any(_is_inside(point, outline) for outline in self._outlines[each])
            ]
        return owners

    def _keypoint_values(self, points: Mapping[str, _Point]) -> tuple[float, ...]:
        """Returns `x, y, visibility` of each keypoint; LabelMe has no hidden keypoints."""
        return tuple(
            value
            for name in self._keypoints
            for value in ((*points[name], 2.0) if name in points else (0.0, 0.0, 0.0))
        )


def _read_shape(
    shape: Shape, *, label: str, size: Size
) -> tuple[ObjectAnnotation | None, list[float] | None]:
    """Reads a shape; returns its object, if it has a box, and its outline, if it has one."""
    kind = shape.shape_type or "polygon"
    points = shape.points
    if not label:
        raise ValueError("the label is empty")
    if not points or any(not abs(value) <= MAX_FLOAT32 for point in points for value in point):
        raise ValueError("points: expected [x, y] of each point")
    if kind in _WITHOUT_BOX:
        return None, None
    if kind in ("polygon", _ROTATION):
        outline = [value for point in points for value in point]
        return ObjectAnnotation(label=label, bbox=box_around(outline)), outline
    if kind not in ("rectangle", "circle", "mask"):
        raise ValueError(f"unknown shape_type {kind[:40]!r}")
    if len(points) < 2:
        raise ValueError(f"points: a {kind} has two, got {len(points)}")
    (x, y), (other_x, other_y) = points[:2]
    if kind == "rectangle":
        corners = [value for point in points for value in point]
        return ObjectAnnotation(label=label, bbox=box_around(corners)), None
    if kind == "circle":
        radius = math.hypot(other_x - x, other_y - y)
        circle = outline_ellipse((x, y), (radius, radius), corners=_CIRCLE_POINTS)
        outline = [value for point in circle for value in point]
        box = (x - radius, y - radius, x + radius, y + radius)
        return ObjectAnnotation(label=label, bbox=box, area=math.pi * radius**2), outline
    return _read_mask(shape, label=label, left=int(x), top=int(y), size=size), None


def _read_mask(
    shape: Shape, *, label: str, left: int, top: int, size: Size
) -> ObjectAnnotation | None:
    if not all(size):
        raise ValueError("a mask needs imageWidth and imageHeight")
    text = shape.mask or ""
    found = describe_base64(text) if text else "nothing (null)"
    if found not in ("", "a PNG as base64"):
        raise ValueError(f"mask: expected a PNG as base64, got {found}: draw the shape again")
    png = decode_base64(text.encode())
    header = scan_png(png, complete=True)
    if header.width * header.height > MAX_MASK_PIXELS:
        raise ValueError(f"mask: {header.width}x{header.height} pixels are too many")
    pixels = read_indices(png, size=(header.width, header.height))
    mask = (pixels != 0).view("uint8")
    return mask_object(mask, label=label, left=left, top=top, frame=size)


def _is_in_box(point: _Point, box: Box) -> bool:
    x, y = point
    xmin, ymin, xmax, ymax = box
    return xmin <= x <= xmax and ymin <= y <= ymax


def _is_inside(point: _Point, outline: Sequence[float]) -> bool:
    """Whether a ray from the point to the right crosses the outline an odd number of times."""
    x, y = point
    corners = list(zip(outline[0::2], outline[1::2], strict=True))
    return bool(
        sum(
            (one[1] > y) != (other[1] > y)
            and x < one[0] + (y - one[1]) * (other[0] - one[0]) / (other[1] - one[1])
            for one, other in zip(corners, corners[1:] + corners[:1], strict=True)
        )
        % 2
    )


# A root with more names than this counts as one without splits.
_MOST_NAMES = 1000
# At most this many JSON files of each top folder are opened.
_FILES = 100

# An absolute path comes from another machine, so only its last part is used.
_ABSOLUTE = re.compile(r"/|[a-zA-Z]:|[a-zA-Z][a-zA-Z0-9+.-]*://")
_BASE64 = re.compile(rb'"[A-Za-z0-9+/]+={0,2}"')
# LabelMe saves pictures in one of these formats, whatever the image's own format is.
_PICTURES = ((b'"/9j/', (".jpg", ".jpeg")), (b'"iVBORw0KGgo', (".png",)))
_ABSENT = (b"", b"null", b'""')
# LabelMe's files begin with one of these keys. The picture after them may be long.
_VERSION = re.compile(rb'\A\s*\{\s*"(version|flags|shapes)"')

_Side = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]


class _File(msgspec.Struct):
    shapes: list[Shape]
    imagePath: str | None = None  # LabelMe's names.
    imageData: msgspec.Raw = msgspec.Raw(b"")
    imageWidth: _Side | None = None
    imageHeight: _Side | None = None
    flags: dict[str, bool] | None = None


# Some tools write numbers as texts.
_decoder = JsonDecoder(_File, strict=False)
_any_decoder = JsonDecoder()


class LabelMeFormat(TopFolderFormat, frozen=True, kw_only=True):
    """LabelMe: JSON files and their images below one folder.

    A JSON file annotates the image beside it that has the name in `imagePath`. If there is none, it
    annotates the image at that path, relative to the file and inside the root. If that is missing,
    too, the image is the picture in `imageData`.

    A top folder is a split if it is named like one and holds a picture with a JSON file.

    Attributes:
        root: The folder that holds everything, at any depth.
        keypoints: Labels of points that are keypoints, in order. They belong to the object with
            the same `group_id` or, without one, to the one object that contains them.
        _masks: Whether objects carry their polygons and masks.
    """

    SUMMARY = "LabelMe JSON: boxes, polygons, masks, and flags as labels"
    UNANNOTATED = "drop"
    ROOTS = ("root",)
    lists_annotations = True
    # Pixels are counted from 0.
    first_pixel = 0.0
    # Corners in pixels.
    box_reading = BoxReading()

    root: Annotated[Location, named("folder of the JSON files and their images", metavar="DIR")]
    keypoints: Annotated[list[str], named("label of a keypoint; give them in their order")] = []
    _masks: bool = False

    def __post_init__(self) -> None:
        if "" in self.keypoints or len(set(self.keypoints)) < len(self.keypoints):
            raise Problem(("keypoints",), "expected labels, each once")

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes JSON files with the shapes of one image each."""
        folders = folder.alike(
            ".json",
            are_alike=lambda heads: are_most(
                b'"shapes"' in head and _VERSION.search(head) is not None for head in heads
            ),
        )
        if not folders:
            return None
        files = [path for paths in folders.values() for path in paths]
        images = folder.find_images(map(without_extension, files), near=files[0])
        # The images may be in a folder beside that of the JSON files.
        root = common_folder([*folders, *([images.folder] if images else [])])
        what = counted(len(files), "JSON file")
        outlines = any(b'"polygon"' in folder.head(path) for path in files[:3])
        return Recognized(what=what, sources={"": {"root": folder.uri(root)}}, outlines=outlines)

    @classmethod
    def predefines_splits(cls, keys: Mapping[str, object]) -> bool:
        """Whether the root has folders of splits.

        Raises:
            InputError: The root cannot be listed.
        """
        found = cls(root=os.path.expanduser(str(keys["root"])))._find_top_folders()
        return found.are_splits or found.is_mixed

    def resolve(self) -> LabelMeFormat:
        """Finds the folders of splits.

        Raises:
            InputError: The root cannot be listed.
        """
        return msgspec.structs.replace(self, **self._find_top_folders().fields())

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects and labels, and keypoints and masks if these are wanted."""
        more = {Kind.INSTANCE_MASKS: self._masks, Kind.KEYPOINTS: self.keypoints}
        return frozenset({Kind.DETECTION, Kind.CLASSIFICATION}) | present_kinds(more)

    @functools.cached_property
    def _files(self) -> RootFiles:
        return RootFiles(self.root)

    def _find_top_folders(self) -> TopFolders:
        """Finds the top folders that hold an image with a JSON file."""
        if not any(map(is_split_name, self._files.folders(limit=_MOST_NAMES))):
            return TopFolders({}, ())
        # {top folder: its first JSON files}
        files: dict[str, list[tuple[str, ImageRef]]] = {}
        for path, file in self._files.walk():
            found = files.setdefault(top_folder(path), [])
            if self.place(path, root=0).role is Role.CONTAINER and len(found) < _FILES:
                found.append((path, file))
        return sort_tops(
            top for top, found in files.items() if any(self._has_image(*each) for each in found)
        )

    def _has_image(self, path: str, file: ImageRef) -> bool:
        # An InputError of the storage must end the run; one of the JSON is the file's.
        try:
            data = _read(file)
        except RejectedError:
            return False
        try:
            found = _decode(data, path=path)
            image_path = self._locate(found, beside=path)
        except (InputError, RejectedError):
            return False
        return bytes(found.imageData) not in _ABSENT or self._files.find(image_path) is not None

    def _locate(self, found: _File, *, beside: str) -> str:
        """Finds the path below the root of the image that a file annotates."""
        path = _image_path(found.imagePath or "", beside=beside)
        # When people move images and their files together, `imagePath` keeps the old folder.
        near = "/".join([*beside.split("/")[:-1], path.rpartition("/")[2]])
        return near if near != path and self._files.find(near) is not None else path

    def place(self, path: str, *, root: int) -> Place:
        """Treats JSON files as containers, since they may hold a picture."""
        key = normalize_key(path)
        if key.lower().endswith(".json") and not is_hidden(key):
            return Place(role=Role.CONTAINER)
        return Place(role=Role.IMAGE, key=key, join=key)

    def read_container(
        self, file: ImageRef, *, path: str, root: int
    ) -> Iterator[ListedImage | AnnotationEntry | Category]:
        """Parses one JSON file, and lists the picture in it if the picture has no file.

        A problem of the file becomes the defect of its entry. JSON of another kind is listed, and
        excluded.

        Raises:
            InputError: The storage fails.
        """
        key = normalize_key(path)
        split = self.split_listed(key)
        try:
            data = _read(file)
        except RejectedError as error:
            yield defect_entry(error, key=key, path=path, split=split)
            return
        try:
            found = _decode(data, path=path)
            image_path = self._locate(found, beside=path)
            key = normalize_key(image_path)
            if (problem := key_problem(key)) is not None:
                key = normalize_key(path)
                raise RejectedError(Reason.UNREADABLE_NAME, f"imagePath: {problem}")
            picture = bytes(found.imageData)
            if picture not in _ABSENT and self._files.find(image_path) is None:
                key = _picture_key(key, picture=picture)
                yield ListedImage(key=key, image=_picture(picture, file=file, data=data))
            lone = count_replaced(replace_surrogates(data)) - count_replaced(data)
            annotations = with_replaced(self._annotations(found, uri=path), lone)
            names = classes_in(annotations)
            for name in names:
                check_class_name(name, uri=path)
        except (InputError, RejectedError) as error:
            if _is_other_json(data):
                yield ListedImage(key=key, image=file)
                yield AnnotationEntry(key=key, exclusion=Exclusion.NOT_AN_ANNOTATION)
            else:
                yield defect_entry(error, key=key, path=path, split=split)
            return
        for name in dict.fromkeys(names):
            # All files share one origin, so that equal categories are merged.
            yield Category(name=name, origin=self.root, keypoints=tuple(self.keypoints))
        yield from lost_classes(
            annotations.lost, origin=self.root, fixes={"point": "--keypoints {label}"}
        )
        annotations, outlines = drop_outlines(annotations, unless=self._masks)
        yield AnnotationEntry(
            key=key,
            annotations=encode_annotations(annotations),
            origin=normalize_key(path),
            split=split,
            outlines=outlines,
        )

    def _annotations(self, found: _File, *, uri: str) -> ImageAnnotations:
        width, height = found.imageWidth or 0, found.imageHeight or 0
        shapes = Shapes(self.keypoints)
        place = "$.shapes"
        try:
            for index, shape in enumerate(found.shapes):
                place = f"$.shapes[{index}]"
                shapes.add(shape, index=index, size=(width, height))
            place = "$.shapes"
            objects = shapes.objects()
        except (ValueError, RejectedError) as error:
            raise InputError(uri=uri, place=place, problem=str(error)) from error
        corrections = shapes.corrections
        flags = [name for name, is_set in (found.flags or {}).items() if is_set and name.strip()]
        for name in filter(NO_CLASSES.__contains__, flags):
            corrections.note(Correction.EXCLUDED_LABEL_DROPPED, name)
        return ImageAnnotations(
            image_id="",
            width=width,
            height=height,
            labels=tuple(name for name in flags if name not in NO_CLASSES),
            objects=tuple(objects),
            **corrections.fields(),
        )


def _read(file: ImageRef) -> bytes:
    return read_bytes(
        file, unreadable=Reason.ANNOTATION_MALFORMED, max_bytes=limits.IMAGE_ANNOTATION_BYTES
    )


def _decode(data: bytes, *, path: str) -> _File:
    text = data.removeprefix(codecs.BOM_UTF8)
    file = decode_json(text, decoder=_decoder, uri=path)
    if (key := repeated_key_within(text)) is not None:
        raise InputError(uri=path, problem=f"the key {key!r} is given twice in one object")
    return file


def _is_other_json(data: bytes) -> bool:
    """Whether a file is JSON with neither of the keys of LabelMe's files."""
    try:
        found = _any_decoder.decode(data.removeprefix(codecs.BOM_UTF8))
    except DECODING_ERRORS:
        return False
    return not isinstance(found, dict) or found.keys().isdisjoint(("shapes", "imagePath"))


def _image_path(text: str, *, beside: str) -> str:
    """Resolves the path of a file's `imagePath` below the root."""
    text = text.replace("\\", "/")
    name = text.rpartition("/")[2]
    if name in ("", ".", ".."):
        raise RejectedError(
            Reason.ANNOTATION_MALFORMED, f"imagePath: expected an image's path, got {text[:40]!r}"
        )
    folder = beside.split("/")[:-1]
    parts = list(folder)
    if _ABSOLUTE.match(text):
        return "/".join([*folder, name])
    for part in text.split("/"):
        if part == ".." and not parts:
            return "/".join([*folder, name])
        if part == "..":
            parts.pop()
        elif part not in ("", "."):
            parts.append(part)
    return "/".join(parts)


def _picture_key(key: str, *, picture: bytes) -> str:
    for start, extensions in _PICTURES:
        if picture.startswith(start) and not key.lower().endswith(extensions):
            return f"{without_extension(key)}{extensions[0]}"
    return key


def _picture(picture: bytes, *, file: ImageRef, data: bytes) -> ImageRef:
    """Refers to the picture: the text between the quotes."""
    problem = ""
    if file.header_bytes or file.coding is not Coding.FILE:
        problem = "the picture lies in a JSON file inside a zip archive: unpack the archive"
    elif not _BASE64.fullmatch(picture):
        problem = "imageData: expected base64"
    return ImageRef(
        uri=file.uri,
        size_bytes=len(picture) - 2,
        version=file.version,
        offset=file.offset + data.find(picture) + 1,
        whole=False,
        coding=Coding.BASE64,
        problem=problem,
    )

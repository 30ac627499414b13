"""CVAT for images: an XML file with boxes, polygons, masks, skeletons and tags of many images.

The format: https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/ (version 1.1).
"""

from __future__ import annotations

import functools
import html
import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec
import numpy as np

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    encode_annotations,
)
from shardbeam.transforms.examples.features import (
    MAX_FLOAT32,
    ExtraFeature,
    FeatureKind,
    value_list,
)
from shardbeam.transforms.examples.geometry.boxes import (
    Box,
    Size,
    box_around,
    turn_box,
    turn_points,
)
from shardbeam.transforms.examples.geometry.segmentation import (
    MAX_MASK_PIXELS,
    mask_object,
    outline_ellipse,
)
from shardbeam.transforms.formats.annotation_file import lost_classes, read_part
from shardbeam.transforms.formats.base import Format, Kind, Match
from shardbeam.transforms.formats.box_format import BoxReading
from shardbeam.transforms.formats.names import escape_key, key_problem, normalize_key
from shardbeam.transforms.formats.parsing.root_files import RootFiles
from shardbeam.transforms.formats.parsing.xml_file import XmlElement, xml_children
from shardbeam.transforms.formats.recognition import (
    Folder,
    Recognized,
    counted,
    describe_missing,
)
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

_READ_BYTES = 4 << 20
# `annotations/meta/project/labels/label/name`.
_MAX_DEPTH = 6
# Images that are looked for to find out whether subsets have their own folders.
_SAMPLE = 5

_OCCLUDED = "image/object/occluded"
# CVAT's name of the subset of tasks without one.
_DEFAULT_SUBSET = "default"
_ELLIPSE_POINTS = 36

# These search the beginning of a file, which may be cut off anywhere.
_IMAGE = re.compile(rb"<image\s[^<>]*>")
_ATTRIBUTE = re.compile(r'\b(\w+)="([^"]*)"')

_encoder = msgspec.json.Encoder()


class _Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The element `meta`, which comes before the images.

    Attributes:
        labels: `{class: names of its keypoints}`; None where the file declares no labels.
        subsets: Names of subsets, in order.
    """

    labels: Mapping[str, tuple[str, ...]] | None = None
    subsets: tuple[str, ...] = ()


class CvatFormat(Format, frozen=True, kw_only=True):
    """CVAT for images 1.1: `annotations.xml`, and the folder `images` beside it.

    Attributes:
        images: Root folder of the images.
        annotations: The XML files.
        _masks: Whether objects carry their polygons and masks.
        _splits: The subsets.
        _in_subsets: Whether images lie in folders named like their subsets.
        _has_skeletons: Whether a class has keypoints.
    """

    SUMMARY = "CVAT for images 1.1 XML: boxes, polygons, masks, skeletons and tags"
    UNANNOTATED = "drop"

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    annotations: Annotated[
        list[Location], msgspec.Meta(min_length=1), named("XML file of CVAT for images")
    ]
    match: Match = "path"
    _masks: bool = False
    _splits: tuple[str, ...] = ()
    _in_subsets: bool = False
    _has_skeletons: bool = False

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes XML files of CVAT for images, and refuses those of CVAT for video.

        Images may have names without extensions, and are then joined by name.
        """
        heads = {path: folder.head(path) for path in folder.few(".xml")}
        heads = {path: head for path, head in heads.items() if b"<annotations>" in head}
        if not heads:
            return None
        what = counted(len(heads), "XML file")
        folders, matches = set(), set()
        for path, head in heads.items():
            if b"<track" in head:
                problem = f"{path} is of CVAT for video; export it as `CVAT for images 1.1`"
                return Recognized(what=what, problem=problem)
            names = []
            for tag in map(bytes.decode, _IMAGE.findall(head)):
                found = {key: html.unescape(value) for key, value in _ATTRIBUTE.findall(tag)}
                names.append("/".join(filter(None, (found.get("subset"), found.get("name", "")))))
                names.append(found.get("name", ""))
            images = folder.find_images(names, near=path)
            if images is None:
                problem = describe_missing(path, names=names)
                return Recognized(what=what, problem=problem)
            folders.add(images.folder)
            matches.add(images.match)
        if len(folders) > 1:
            problem = f"their images are in several folders: {', '.join(sorted(folders))}"
            return Recognized(what=what, problem=problem)
        keys: dict[str, object] = {
            "images": folder.uri(*folders),
            "annotations": [*map(folder.uri, heads)],
        }
        if "name" in matches:
            keys["match"] = "name"
        return Recognized(what=what, sources={"": keys})

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects and labels, keypoints if a class has any, and masks if these are wanted."""
        more = {Kind.INSTANCE_MASKS: self._masks, Kind.KEYPOINTS: self._has_skeletons}
        return frozenset(
            {Kind.DETECTION, Kind.CLASSIFICATION, *(kind for kind, is_in in more.items() if is_in)}
        )

    def resolve(self) -> CvatFormat:
        """Finds subsets, skeletons and the images' folders from the beginnings of the files.

        Raises:
            InputError: A file cannot be read, or is not an XML file of CVAT for images.
        """
        files = RootFiles(self.images)
        subsets: dict[str, None] = {}
        in_subsets = has_skeletons = False
        for uri in self.annotations:
            meta = _Meta()
            sampled = 0
            for element in _elements(uri, storage=storage_for(uri)):
                if element.tag == "meta":
                    meta = _read_meta(element)
                elif element.tag == "image":
                    sampled += 1
                    key = _key(element, in_subsets=True)
                    in_subsets |= (
                        key_problem(key) is None
                        and files.find(key) is not None
                        and ("subset" in element.attributes)
                    )
                if sampled == _SAMPLE:
                    break
            subsets |= dict.fromkeys(meta.subsets)
            has_skeletons |= any((meta.labels or {}).values())
        return msgspec.structs.replace(
            self,
            # A project without subsets exports one subset with this name.
            _splits=tuple(subsets) if set(subsets) != {_DEFAULT_SUBSET} else (),
            _in_subsets=in_subsets,
            _has_skeletons=has_skeletons,
        )

    @property
    def first_pixel(self) -> float:
        """Pixels are counted from 0."""
        return 0.0

    @property
    def box_reading(self) -> BoxReading:
        """Corners in pixels."""
        return BoxReading()

    def predefined_splits(self) -> Sequence[str]:
        """Returns the subsets that the files name.

        Raises:
            InputError: One of them cannot be the name of a split.
        """
        for split in self._splits:
            if not (split.isascii() and split.isidentifier()) or split.startswith("_"):
                raise InputError(
                    uri=self.annotations[0],
                    place="subset",
                    problem=f"{split[:40]!r} cannot be a split: a letter, then letters, digits "
                    "and _; name the splits with --split or --fractions",
                )
        return self._splits

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares whether an object is occluded, under TF Object Detection API's name."""
        return (ExtraFeature(value_list(_OCCLUDED, FeatureKind.INT64), per_object=True),)

    def annotation_files(self) -> Sequence[str]:
        """Returns the XML files."""
        return self.annotations

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file, image by image."""
        uri = self.annotations[file_index]
        meta = _Meta()
        found: dict[str, None] = {}
        lost: dict[str, dict[str, int]] = {}
        elements = _elements(uri, storage=storage)
        for position, element in enumerate(elements):
            if element.tag == "meta":
                meta = _read_meta(element)
            if element.tag != "image":
                continue
            key = _key(element, in_subsets=self._in_subsets)
            split = element.attributes.get("subset", meta.subsets[0] if meta.subsets else "")
            entry = AnnotationEntry(
                key=key,
                file_index=file_index,
                position=position,
                image_id=escape_key(element.attributes.get("id", "")),
                split=split if split in self._splits else "",
            )
            problem = key_problem(key)
            try:
                if problem is not None:
                    key = escape_key(key) or f"{uri.rpartition('/')[2]}: line {element.line}"
                    raise element.error(f"an <image> whose name cannot be used: {problem}")
                reader = _ImageReader(
                    element, labels=meta.labels, wants_masks=Kind.INSTANCE_MASKS in self.kinds
                )
                annotations = reader.read()
            except InputError as error:
                yield msgspec.structs.replace(
                    entry,
                    key=key,
                    defect=Reason.UNREADABLE_NAME if problem else Reason.ANNOTATION_MALFORMED,
                    detail=f"{uri.rpartition('/')[2]}: {error.place}: {error.problem}",
                )
                continue
            names = (*annotations.labels, *(item.label for item in annotations.objects))
            found.update(dict.fromkeys(names))
            for name, shapes in annotations.lost.items():
                lost.setdefault(name, {}).update(shapes)
            yield msgspec.structs.replace(entry, annotations=encode_annotations(annotations))
        labels = dict.fromkeys(found, ()) if meta.labels is None else meta.labels
        for name, keypoints in labels.items():
            yield Category(name=name, origin=uri, keypoints=keypoints)
        yield from lost_classes(lost, origin=uri)


def _elements(uri: str, *, storage: Storage) -> Iterator[XmlElement]:
    """Reads a file piece by piece; yields `meta` and each `image`."""
    is_empty = True
    for element in xml_children(
        _parts(uri, storage=storage), root="annotations", max_depth=_MAX_DEPTH, uri=uri
    ):
        if element.tag == "track":
            raise element.error(
                "tracks are of CVAT for video; export the task as `CVAT for images 1.1`"
            )
        is_empty &= element.tag != "image"
        yield element
    if is_empty:
        raise InputError(uri=uri, problem="no <image> found; expected CVAT for images 1.1")


def _parts(uri: str, *, storage: Storage) -> Iterator[bytes]:
    for offset in itertools.count(0, _READ_BYTES):
        part = read_part(uri, storage=storage, offset=offset, size_bytes=_READ_BYTES)
        if not offset and not part.strip():
            raise InputError(uri=uri, problem="the file is empty")
        yield part
        counters.annotation_bytes.add(len(part))
        if len(part) < _READ_BYTES:
            return


def _read_meta(meta: XmlElement) -> _Meta:
    """Reads the labels and subsets of a project, a task or a job."""
    labels: dict[str, list[str]] | None = None
    subsets: dict[str, None] = {}
    for owner in meta.children:
        for text in (child for child in owner.children if child.tag in ("subset", "subsets")):
            for subset in "".join(text.texts).split("\n"):
                if subset.strip() or text.tag == "subsets":
                    subsets[subset.strip() or _DEFAULT_SUBSET] = None
        for group in owner.all("labels"):
            labels = {} if labels is None else labels
            parents = []
            for label in group.all("label"):
                name, parent = label.one("name"), label.one("parent")
                if name is None or not name.text:
                    raise label.error("a <label> without <name>")
                if parent is None or not parent.text:
                    labels.setdefault(name.text, [])
                else:
                    parents.append((parent.text, name.text))
            for parent_name, point in parents:
                if point not in (points := labels.setdefault(parent_name, [])):
                    points.append(point)
    return _Meta(
        labels=None if labels is None else {name: tuple(own) for name, own in labels.items()},
        subsets=tuple(subsets),
    )


def _key(image: XmlElement, *, in_subsets: bool) -> str:
    name, subset = image.attributes.get("name", ""), image.attributes.get("subset", "")
    return normalize_key(f"{subset}/{name}" if in_subsets and subset and name else name)


class _ImageReader:
    """Reads the shapes and tags of one `image`.

    Args:
        image: The element.
        labels: The classes and their keypoints; None where the file declares none.
        wants_masks: Whether objects carry their segmentation.
    """

    def __init__(
        self,
        image: XmlElement,
        *,
        labels: Mapping[str, tuple[str, ...]] | None,
        wants_masks: bool,
    ) -> None:
        self._image = image
        self._labels = labels
        self._wants_masks = wants_masks
        self._size = (image.attribute_pixels("width"), image.attribute_pixels("height"))

    def read(self) -> ImageAnnotations:
        """Reads the image's annotations.

        Raises:
            InputError: A shape lacks an attribute, or has a value that is not a number.
        """
        shapes: Mapping[str, Callable[[XmlElement], ObjectAnnotation | None]] = {
            "box": _read_box,
            "polygon": _read_polygon,
            "ellipse": _read_ellipse,
            "mask": functools.partial(_read_mask, size=self._size),
            "skeleton": self._read_skeleton,
        }
        # Lines and points have no area, and a cuboid does not lie in the image's plane. Shapes that
        # nobody here knows are counted like them.
        without_box = ("polyline", "points", "cuboid")
        tags: dict[str, None] = {}
        objects: list[ObjectAnnotation] = []
        corrections = Corrections()
        for shape in self._image.children:
            is_known = shape.tag in (*shapes, *without_box, "tag")
            if not is_known and "label" not in shape.attributes:
                continue
            label = " ".join(shape.required("label").split())
            is_tag = shape.tag == "tag"
            if not label or (self._labels is not None and label not in self._labels):
                unknown = Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED
                if is_tag:
                    unknown = Correction.LABEL_OF_UNKNOWN_CATEGORY_DROPPED
                corrections.note(unknown, label)
            elif is_tag:
                tags[label] = None
            elif shape.tag not in shapes or (item := shapes[shape.tag](shape)) is None:
                corrections.note_lost(label, shape.tag)
            else:
                if shape.tag == "box" and item.segmentation:
                    corrections.note(Correction.BOX_TURNED, _given_box(shape), item.bbox)
                objects.append(
                    msgspec.structs.replace(
                        item,
                        label=label,
                        segmentation=item.segmentation if self._wants_masks else b"",
                        attributes={_OCCLUDED: 1} if _is_set(shape, "occluded") else {},
                    )
                )
        width, height = self._size
        return ImageAnnotations(
            image_id=escape_key(self._image.attributes.get("id", "")),
            width=width,
            height=height,
            labels=tuple(tags),
            objects=tuple(objects),
            corrections=corrections.counts(),
            changes=corrections.changes,
            lost=corrections.lost,
        )

    def _read_skeleton(self, shape: XmlElement) -> ObjectAnnotation | None:
        names = (self._labels or {}).get(" ".join(shape.attributes["label"].split()), ())
        keypoints = [0.0] * (3 * len(names))
        labelled: list[float] = []
        for point in shape.all("points"):
            name = " ".join(point.required("label").split())
            coordinates = _coordinates(point)
            if len(coordinates) != 2:
                raise point.error("expected one point, `x,y`, in each <points> of a <skeleton>")
            if name not in names:
                raise point.error(f"the label declares no keypoint {name[:40]!r}")
            if not _is_set(point, "outside"):
                labelled += coordinates
                visibility = 1.0 if _is_set(point, "occluded") else 2.0
                first = 3 * names.index(name)
                keypoints[first : first + 3] = (*coordinates, visibility)
        if not labelled:
            return None
        return ObjectAnnotation(label="", bbox=box_around(labelled), keypoints=tuple(keypoints))


def _is_set(element: XmlElement, name: str) -> bool:
    return element.attributes.get(name) == "1"


def _coordinate(shape: XmlElement, name: str, *, default: str | None = None) -> float:
    text = shape.required(name) if default is None else shape.attributes.get(name, default)
    return _limited(shape, text, what=name)


def _limited(shape: XmlElement, text: str, *, what: str) -> float:
    number = shape.parse_number(text.strip(), what=what)
    if abs(number) > MAX_FLOAT32:
        raise shape.error(f"{what}: too large a number")
    return number


def _coordinates(shape: XmlElement) -> list[float]:
    """Reads `x,y;x,y;…`."""
    points = [point.split(",") for point in shape.required("points").split(";")]
    if any(len(point) != 2 for point in points):
        raise shape.error("points: expected `x,y;x,y;…`")
    return [_limited(shape, value, what="points") for point in points for value in point]


def _angle(shape: XmlElement) -> float:
    """Reads by how much a shape is turned clockwise, in radians."""
    return math.radians(_coordinate(shape, "rotation", default="0") % 360)


def _given_box(shape: XmlElement) -> Box:
    xmin, ymin, xmax, ymax = (_coordinate(shape, name) for name in ("xtl", "ytl", "xbr", "ybr"))
    return xmin, ymin, xmax, ymax


def _read_box(shape: XmlElement) -> ObjectAnnotation:
    box = _given_box(shape)
    if not _angle(shape):
        return ObjectAnnotation(label="", bbox=box)
    xmin, ymin, xmax, ymax = box
    polygon = turn_box(box, angle=_angle(shape))
    return ObjectAnnotation(
        label="",
        bbox=box_around(polygon),
        area=abs((xmax - xmin) * (ymax - ymin)),
        segmentation=_encoder.encode([polygon]),
    )


def _read_polygon(shape: XmlElement) -> ObjectAnnotation:
    polygon = _coordinates(shape)
    return ObjectAnnotation(
        label="", bbox=box_around(polygon), segmentation=_encoder.encode([polygon])
    )


def _read_ellipse(shape: XmlElement) -> ObjectAnnotation:
    cx, cy, rx, ry = (_coordinate(shape, name) for name in ("cx", "cy", "rx", "ry"))
    outline = outline_ellipse((cx, cy), (rx, ry), corners=_ELLIPSE_POINTS)
    # The box around a turned line would have an area.
    angle = _angle(shape) if rx and ry else 0.0
    polygon = turn_points(outline, center=(cx, cy), angle=angle)
    return ObjectAnnotation(
        label="",
        bbox=box_around(polygon),
        area=math.pi * abs(rx * ry),
        segmentation=_encoder.encode([polygon]),
    )


def _read_mask(shape: XmlElement, *, size: Size) -> ObjectAnnotation | None:
    """Reads a mask of a part of the image: the lengths of runs of 0 and 1 in turn, row by row."""
    left, top, width, height = (
        int(_coordinate(shape, name)) for name in ("left", "top", "width", "height")
    )
    if not all(size):
        raise shape.error("a mask needs the width and height of its <image>")
    if min(left, top) < 0 or min(width, height) < 1 or width * height > MAX_MASK_PIXELS:
        raise shape.error(
            "the mask's left, top, width and height do not describe a part of an image"
        )
    texts = shape.required("rle").replace(",", " ").split()
    counts = [int(text) for text in texts if text.isascii() and text.isdigit() and len(text) < 12]
    if len(counts) != len(texts) or sum(counts) != width * height:
        raise shape.error(f"rle: expected runs of {width * height} pixels in all")
    values = np.zeros(len(counts), np.uint8)
    values[1::2] = 1
    mask = np.repeat(values, counts).reshape(height, width)
    return mask_object(mask, label="", left=left, top=top, frame=size)

"""Finds out what a COCO file annotates from its beginning, without parsing all of it.

The format: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import functools
import json
import posixpath
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from shardbeam.configs.keys import Location
from shardbeam.transforms.core.box_formats import BOX_FORMATS, BoxFormat, BoxReading, BoxUnits
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import BACKGROUND_NAMES
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.geometry.box_readings import CORNERS
from shardbeam.transforms.examples.geometry.boxes import Box, box_around
from shardbeam.transforms.examples.geometry.mask_crops import box_iou
from shardbeam.transforms.formats.annotation_file import explain_errors
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.coco.annotations import panoptic_file_error
from shardbeam.transforms.storage import limits
from shardbeam.transforms.storage.base import Storage, too_large
from shardbeam.transforms.storage.find import storage_for

if TYPE_CHECKING:
    from shardbeam.transforms.formats.recognition import Folder, ImageFolder, Recognized

_READ_BYTES = 4 << 20
# A longer item is considered broken.
_MAX_WINDOW_BYTES = 64 << 20
_MAX_ITEMS = 1_000
# A box and its outline belong together from this overlap on, as intersection over union. If more
# than this share of the objects have less, the boxes are read wrongly.
_MIN_IOU, _MOST_APART = 0.5, 0.1
# Searching for the name first is quick; the lookbehind then checks the quote before it.
ANNOTATIONS, IMAGES, CATEGORIES = (
    re.compile(rb'"%s"(?<!\\"%s")\s*:\s*' % (name, name))
    for name in (b"annotations", b"images", b"categories")
)
# Two reads may cut apart the text that these match; in any sane file it is shorter than this.
OVERLAP_BYTES = 256
_decoder = json.JSONDecoder()
_SEPARATOR = re.compile(r"[\s,]*")
_STUFF_NAME = re.compile(r"(?<![a-z])stuff(?![a-z])", re.IGNORECASE)

# The keys that a source may fill: objects, objects with keypoints, captions, classes of the image
# (annotations with a category and no box), panoptic segments, and a map of classes from PNGs or
# from a file of stuff. All but the last two need annotations.
Task: TypeAlias = Literal[
    "detection", "keypoints", "captions", "classification", "panoptic", "semantic"
]
TASKS: tuple[Task, ...] = get_args(Task)


def is_stuff_name(uri: str) -> bool:
    """Whether a file's name is that of a file of stuff, such as `stuff_train2017.json`.

    Only the name shows it: the content looks like that of an instances file.
    """
    return _STUFF_NAME.search(uri.rpartition("/")[2]) is not None


def sniff_tasks(uri: str, *, storage: Storage) -> frozenset[Task]:
    """Finds the tasks of a file from the beginning of its `annotations`.

    The file is read up to the first annotations and not parsed; the parser reports its errors
    later. A file without annotations has no tasks.

    Raises:
        InputError: The file cannot be read, or holds panoptic segments.
    """
    annotations = first_items(ANNOTATIONS, uri, storage=storage) or []
    if has_segments(annotations):
        raise panoptic_file_error(uri)
    return tasks_of(annotations, uri=uri)


def sniff_png_names(uri: str, *, storage: Storage) -> list[tuple[str, str]]:
    """Reads `(file name of an image, file name of its PNG)` off the first panoptic annotations.

    Raises:
        InputError: The file cannot be read.
    """
    images = {
        str(image.get("id")): str(image.get("file_name"))
        for image in first_items(IMAGES, uri, storage=storage) or []
    }
    return [
        (images[image_id], str(annotation["file_name"]))
        for annotation in first_items(ANNOTATIONS, uri, storage=storage) or []
        if (image_id := str(annotation.get("image_id"))) in images and "file_name" in annotation
    ]


def sniff_class_ids(uris: Iterable[str]) -> set[int]:
    """Reads the ids of the first categories of files, without a category 0 for the background.

    Raises:
        InputError: A file cannot be read.
    """
    ids: set[int] = set()
    for uri in uris:
        categories = first_items(CATEGORIES, uri, storage=storage_for(uri)) or []
        names = {str(each.get("supercategory")) for each in categories if each.get("id") != 0}
        for category in categories:
            class_id, name = category.get("id"), str(category.get("name"))
            # Roboflow's dummy has the name that is the supercategory of all others.
            is_dummy = category.get("supercategory") == "none" and names == {name}
            if class_id == 0 and (is_dummy or name.casefold() in BACKGROUND_NAMES):
                continue
            if isinstance(class_id, int):
                ids.add(class_id)
    return ids


class FirstAnnotations(NamedTuple):
    """What the first annotations of a file show.

    Attributes:
        has_section: Whether the file has a section `annotations`; COCO's files of test images have
            none.
        outlined: The number of objects with a box and polygons.
        apart: `{box_format: number of objects whose box, read like this, overlaps with the
            polygons by less than half}`.
    """

    has_section: bool
    outlined: int
    apart: Mapping[BoxFormat, int]

    @property
    def fitting(self) -> Sequence[BoxFormat]:
        """The readings of boxes that agree with the polygons; all if there are none."""
        return [each for each in BOX_FORMATS if self.apart[each] <= _MOST_APART * self.outlined]


def sniff_annotations(uri: str) -> FirstAnnotations:
    """Compares the boxes of a file's first annotations with their polygons.

    Raises:
        InputError: The file cannot be read.
    """
    annotations = first_items(ANNOTATIONS, uri, storage=storage_for(uri))
    outlined = [it for each in annotations or () if (it := _box_and_outline(each)) is not None]
    return FirstAnnotations(
        has_section=annotations is not None,
        outlined=len(outlined),
        apart={each: _count_apart(outlined, box_format=each) for each in BOX_FORMATS},
    )


class CocoBoxes(Format, frozen=True, kw_only=True):
    """How COCO and LVIS read boxes, and what the beginnings of their files show about them.

    Both formats have these keys. They are no fields here, because their order in the help is that
    of each format.

    Attributes:
        annotations: The JSON files.
        box_format: What the four numbers of `bbox` mean.
        box_units: The units of boxes.
    """

    if TYPE_CHECKING:
        annotations: list[Location]
        box_format: BoxFormat
        box_units: BoxUnits

    @property
    def first_pixel(self) -> float | None:
        """Pixels are counted from 0."""
        return 0.0 if self.box_units == "px" else None

    @property
    def box_reading(self) -> BoxReading:
        """As the keys say, and the polygons of all files allow."""
        files = self._first_annotations.values()
        fitting = tuple(each for each in BOX_FORMATS if all(each in it.fitting for it in files))
        return BoxReading(self.box_format, has_keys=True, fitting=fitting)

    def warnings(self) -> Iterator[str]:
        """Warns of files without annotations, and of boxes that disagree with their polygons."""
        for uri, first in self._first_annotations.items():
            name = uri.rpartition("/")[2]
            if not first.has_section:
                yield (
                    f"{name} has no section `annotations`: images that only it lists are written "
                    "without annotations; expect.max_unannotated refuses too many of these"
                )
            if self.box_format not in first.fitting:
                fixes = [f"box_format: {other} (--box-format {other})" for other in first.fitting]
                fix = (
                    f"they agree with {' or '.join(fixes)}"
                    if fixes
                    else "no other box_format agrees with them: correct the boxes or the outlines"
                )
                yield (
                    f"{name}: {first.apart[self.box_format]:,} of the first {first.outlined:,} "
                    "objects with polygons have a box that overlaps with them by less than half; "
                    f"{fix}"
                )

    @functools.cached_property
    def _first_annotations(self) -> Mapping[str, FirstAnnotations]:
        return {uri: sniff_annotations(uri) for uri in self.annotations}


def _box_and_outline(annotation: Mapping[str, Any]) -> tuple[Sequence[float], Box] | None:
    """Returns the four numbers of an object's box, and the box around its polygons."""
    try:
        numbers = [float(number) for number in annotation["bbox"]]
        # Points may be lists of two numbers.
        coordinates = [float(it) for part in annotation["segmentation"] for it in _flat(part)]
        outline = box_around(coordinates)
    except (KeyError, TypeError, ValueError):
        # The reader reports what is wrong.
        return None
    xmin, ymin, xmax, ymax = outline
    return (numbers, outline) if len(numbers) == 4 and xmin < xmax and ymin < ymax else None


def _flat(polygon: Sequence[Any]) -> Iterator[Any]:
    for part in polygon:
        yield from part if isinstance(part, list) else [part]


def _count_apart(outlined: Iterable[tuple[Sequence[float], Box]], *, box_format: BoxFormat) -> int:
    """Counts the boxes that overlap with their outlines by less than half."""
    apart = 0
    for (first, second, third, fourth), outline in outlined:
        xmin, ymin, xmax, ymax = CORNERS[box_format](first, second, third, fourth)
        # Corners in the wrong order are exchanged later.
        box = min(xmin, xmax), min(ymin, ymax), max(xmin, xmax), max(ymin, ymax)
        apart += box_iou(box, outline) < _MIN_IOU
    return apart


def has_segments(annotations: Sequence[Mapping[str, Any]]) -> bool:
    """Whether annotations are panoptic: lists of segments."""
    return any("segments_info" in annotation for annotation in annotations)


def tasks_of(annotations: Sequence[Mapping[str, Any]], *, uri: str) -> frozenset[Task]:
    """Finds the tasks that a file's annotations fill."""
    tasks: set[Task] = set()
    labels = False
    for annotation in annotations:
        if annotation.get("bbox") or annotation.get("segmentation"):
            tasks.add("semantic" if is_stuff_name(uri) else "detection")
        if annotation.get("keypoints"):
            tasks.add("keypoints")
        if annotation.get("caption") is not None:
            tasks.add("captions")
        labels |= "category_id" in annotation
    # Among objects or captions, an annotation with nothing but a category lacks its box.
    return frozenset(tasks or ({"classification"} if labels else ()))


def first_items(
    section: re.Pattern[bytes], uri: str, *, storage: Storage
) -> list[dict[str, Any]] | None:
    """Decodes the first items of a section; returns None where it is missing or `null`."""
    with explain_errors(uri):
        stored = storage.find(uri)
        if stored.size_bytes > limits.ANNOTATION_BYTES:
            raise too_large(uri, max_bytes=limits.ANNOTATION_BYTES)
        window = b""
        is_inside = False
        for offset in range(0, stored.size_bytes, _READ_BYTES):
            size_bytes = min(_READ_BYTES, stored.size_bytes - offset)
            window += storage.read(uri, offset=offset, size_bytes=size_bytes)
            if not is_inside:
                begin = section.search(window)
                # A match at the very end may be cut off.
                if begin is None or begin.end() == len(window):
                    window = window[-OVERLAP_BYTES:]
                    continue
                is_inside = True
                window = window[begin.end() :]
            found, is_complete = _decode_objects(window)
            # Read on if the first item is longer than the window.
            if found or is_complete or len(window) >= _MAX_WINDOW_BYTES:
                return None if window.startswith(b"null") else found
    return [] if is_inside else None


def _decode_objects(window: bytes) -> tuple[list[dict[str, Any]], bool]:
    """Decodes the first objects of a list that may be cut off, and says whether these are all."""
    # A character that is cut in half at the end does not matter.
    text = window.decode("utf-8", "replace")
    if text and text[0] != "[":
        return [], True
    position = 1
    found: list[dict[str, Any]] = []
    while len(found) < _MAX_ITEMS:
        position = _SEPARATOR.match(text, position).end()  # type: ignore[union-attr]  # It matches anything.
        if text[position : position + 1] not in ("{", ""):
            return found, True
        try:
            item, position = _decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return found, False
        found.append(item)
    return found, False


# Recognizes COCO and LVIS files in a folder, for `shardbeam init` alone.


class _File(NamedTuple):
    """A COCO file in a folder that `shardbeam init` looks at.

    Attributes:
        path: Its path.
        names: Names of its first images.
        tasks: Its tasks; empty for panoptic segments, and for images alone.
        masks: Names of its first panoptic PNGs; empty where it has none.
        outlines: Whether its first objects have outlines.
    """

    path: str
    names: list[str]
    tasks: frozenset[Task]
    masks: list[str]
    outlines: bool

    @property
    def key(self) -> str:
        """The key of a source that names the file."""
        return "panoptic" if self.masks else "annotations"

    @property
    def kind(self) -> frozenset[str]:
        """What it annotates: one file of a kind can be read for the same images."""
        return frozenset({"panoptic"}) if self.masks else frozenset(map(str, self.tasks))


def recognize_coco(folder: Folder, *, is_lvis: bool) -> Recognized | None:
    """Recognizes JSON files of images that are in a folder: those of LVIS, or all others.

    Raises:
        DoubtError: A file does not fit the files before it, or what it names is missing.
    """
    # Imported here, because a build does not need it.
    from shardbeam.transforms.formats.recognition import Recognized, Sources, split_in

    files = [
        found
        for path in folder.few(".json")
        if (found := _sniff_file(path, folder=folder, is_lvis=is_lvis)) is not None
    ]
    if not files:
        return None
    what = counted(len(files), "annotation file")
    sources = Sources(folder, what=what)
    notes: list[str] = []
    # {(split, what files annotate): the first such file}
    firsts: dict[tuple[str, frozenset[str]], _File] = {}
    for file in files:
        images = sources.find_images(file.path, file.names)
        split = split_in(file.path) or split_in(images.folder) or _shared_ending(file.path, images)
        source = sources.source_of(file.path, images, split=split)
        first = firsts.setdefault((split, file.kind), file)
        if first is not file:
            if not set(first.names) & set(file.names):
                kinds = ", ".join(sorted(first.kind)) or "images"
                raise sources.doubt(f"{first.path} and {file.path} both hold {kinds}")
            uri = folder.uri(file.path)
            notes.append(
                f"{first.path} and {file.path} are about the same images, and the first is read; "
                f"to read the other one instead: {file.key}: {uri if file.masks else f'[{uri}]'}"
            )
        elif file.masks:
            masks = folder.find_images(file.masks, near=file.path, besides=images.folder)
            if masks is None or masks.match != "path":
                problem = f"the PNGs that {file.path} names are not there: {file.masks[0]!r}"
                raise sources.doubt(problem)
            source["panoptic"] = folder.uri(file.path)
            source["panoptic_masks"] = folder.uri(masks.folder)
        else:
            sources.add(file.path, images, split=split)
    outlines = any(file.outlines for file in files)
    return Recognized(what=what, sources=sources.by_split, notes=notes, outlines=outlines)


def _shared_ending(path: str, images: ImageFolder) -> str:
    """Returns the name of the folder of images if the file's name ends with it: `a_b.json`, `b`."""
    name = posixpath.basename(images.folder)
    is_shared = posixpath.splitext(path)[0].endswith(f"_{name}") and images.match == "path"
    return name if name and is_shared else ""


def _sniff_file(path: str, *, folder: Folder, is_lvis: bool) -> _File | None:
    if not folder.head(path, size_bytes=OVERLAP_BYTES).lstrip().startswith(b"{"):
        return None
    uri = folder.location(path)
    storage = storage_for(uri)
    try:
        images = first_items(IMAGES, uri, storage=storage) or []
        annotations = first_items(ANNOTATIONS, uri, storage=storage) or []
    except InputError:
        return None
    if is_lvis != any("neg_category_ids" in image for image in images):
        return None
    is_panoptic = has_segments(annotations)
    tasks = frozenset() if is_panoptic else tasks_of(annotations, uri=uri)
    names = [name for image in images if "id" in image for name in _names(image, is_lvis=is_lvis)]
    masks = [str(item["file_name"]) for item in annotations if is_panoptic and "file_name" in item]
    outlines = is_panoptic or any(item.get("segmentation") for item in annotations)
    return _File(path, names, tasks, masks, outlines) if names else None


def _names(image: Mapping[str, Any], *, is_lvis: bool) -> list[str]:
    """Returns the names that an image's file may have."""
    name = image.get("file_name")
    if not is_lvis:
        return [name] if isinstance(name, str) else []
    # LVIS uses COCO's images, which have their names of 2014, of 2017, or those in their URLs.
    end = posixpath.basename(str(name or image.get("coco_url") or ""))
    return list(dict.fromkeys(filter(None, (end, end.rpartition("_")[2]))))

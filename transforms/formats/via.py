"""VIA (VGG Image Annotator) 1 and 2: JSON exports, projects, and CSV.

The tool: https://www.robots.ox.ac.uk/~vgg/software/via/.
"""

from __future__ import annotations

import contextlib
import functools
import math
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, NamedTuple, TypeVar

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import check_class_name
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    encode_annotations,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.features import MAX_FLOAT32
from shardbeam.transforms.formats.annotation_file import (
    FoundClasses,
    count_replaced,
    decode_json,
    drop_outlines,
    ellipse_object,
    lost_classes,
    polygon_object,
    read_annotation_file,
    repeated_key,
    repeated_key_within,
    with_defect,
    with_replaced,
)
from shardbeam.transforms.formats.base import Format, Kind, Match
from shardbeam.transforms.formats.names import escape_key, key_problem, normalize_key
from shardbeam.transforms.formats.parsing.lines import header_cells, read_lines, read_rows
from shardbeam.transforms.formats.parsing.root_files import short_names
from shardbeam.transforms.formats.recognition import Folder, Recognized, Sources, split_in
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

# The files of VIA: JSON exports and projects, and CSV.
#
# The formats: https://gitlab.com/vgg/via/blob/via-2.x.y/CodeDoc.md (JSON),
# https://gitlab.com/vgg/via/blob/via-2.x.y/via.js (CSV).

T = TypeVar("T")

# The section of a project that an export has as the whole file.
_IMAGES = "_via_img_metadata"
_SHAPE, _ATTRIBUTES, _COUNT = "region_shape_attributes", "region_attributes", "region_count"
# A VIA 3 project has these sections.
_VIA_3 = {"metadata", "view", "file"}


class Shape(msgspec.Struct):
    """The outline of a region; which fields it has depends on `name`."""

    name: str
    x: float | None = None
    y: float | None = None
    width: float | None = None
    height: float | None = None
    cx: float | None = None
    cy: float | None = None
    r: float | None = None
    rx: float | None = None
    ry: float | None = None
    theta: float = 0.0
    all_points_x: list[float] | None = None
    all_points_y: list[float] | None = None


class Region(msgspec.Struct):
    """A region of an image."""

    shape_attributes: Shape
    region_attributes: dict[str, Any] | None = None


class ViaImage(msgspec.Struct, kw_only=True):
    """What a file says about one image.

    Attributes:
        name: Its name in the file; where the file gives none, the place of its entry.
        place: The place in the file.
        position: Its number in a JSON file, its first line in a CSV file.
        regions: Its regions.
        problem: Why they cannot be read; empty if they can.
        lone_surrogates: Number of lone surrogates in its texts.
    """

    name: str
    place: str
    position: int
    regions: list[Region] = []
    problem: str = ""
    lone_surrogates: int = 0


class _Named(msgspec.Struct):
    filename: str


class _Image(_Named):
    regions: list[Region] | dict[str, Region] | None


# Some programs write numbers as texts.
_image_decoder = JsonDecoder(_Image, strict=False)
_shape_decoder = JsonDecoder(Shape, strict=False)
_named_decoder = JsonDecoder(_Named)
_sections_decoder = JsonDecoder(dict[str, msgspec.Raw])
_attributes_decoder = JsonDecoder(dict[str, Any])


def read_via_file(uri: str, *, storage: Storage) -> Iterator[ViaImage]:
    """Reads a JSON file, or a CSV file if its name ends with `.csv`.

    Raises:
        InputError: The file cannot be read, or is no file of VIA 1 or 2.
    """
    if uri.lower().endswith(".csv"):
        yield from _read_csv(uri, storage=storage)
    else:
        yield from _read_json(uri, storage=storage)


def _read_json(uri: str, *, storage: Storage) -> Iterator[ViaImage]:
    data: bytes | msgspec.Raw = read_annotation_file(uri, storage=storage)
    sections = _read_sections(data, uri=uri)
    place = "$"
    if _IMAGES in sections:
        data, place = sections[_IMAGES], f"$.{_IMAGES}"
        sections = _read_sections(data, uri=uri, place=place)
    elif sections.keys() >= _VIA_3:
        problem = "a project of VIA 3, which is not read; VIA 1 and 2 are"
        raise InputError(uri=uri, problem=problem)
    elif sections and not any(b'"filename"' in bytes(text) for text in sections.values()):
        problem = f"no file of VIA: expected {_IMAGES}, or an object for each image with `filename`"
        raise InputError(uri=uri, problem=problem)
    for position, (key, text) in enumerate(sections.items()):
        where = f"{place}[{key!r}]"
        found = ViaImage(name=where, place=where, position=position)
        found.lone_surrogates = count_replaced(text)
        try:
            found.name = decode_json(text, decoder=_named_decoder, uri=uri, place=where).filename
            image = decode_json(text, decoder=_image_decoder, uri=uri, place=where)
            regions = image.regions or []
            found.regions = [*(regions.values() if isinstance(regions, dict) else regions)]
            if (twice := repeated_key_within(text)) is not None:
                found.problem = f"{where}: the key {twice!r} is given twice in one object"
        except InputError as error:
            found.problem = f"{error.place}: {error.problem}"
        yield found


def _read_sections(
    data: bytes | msgspec.Raw, *, uri: str, place: str = ""
) -> Mapping[str, msgspec.Raw]:
    sections = decode_json(data, decoder=_sections_decoder, uri=uri, place=place)
    if (key := repeated_key(data)) is not None:
        raise InputError(uri=uri, place=place or "$", problem=f"the key {key!r} is given twice")
    return sections


def _read_csv(uri: str, *, storage: Storage) -> Iterator[ViaImage]:
    lines = read_lines(uri, storage=storage)
    header = header_cells(next(lines, (0, b""))[1], uri=uri)
    # VIA 1 writes `#filename`.
    header[0] = header[0].removeprefix("#")
    if missing := {"filename", _SHAPE, _ATTRIBUTES}.difference(header):
        problem = f"no CSV of VIA: the first line lacks {', '.join(sorted(missing))}"
        raise InputError(uri=uri, place="line 1", problem=problem)
    images: dict[tuple[str, str], ViaImage] = {}
    counts: dict[tuple[str, str], str] = {}
    for line, row in read_rows(lines, header=header, multiline=False):
        if isinstance(row, str):
            # Nobody knows whose region it is.
            raise InputError(uri=uri, place=f"line {line}", problem=row)
        # As VIA's JSON tells images apart.
        key = row["filename"], row.get("file_size", "")
        found = images.get(key)
        if found is None:
            found = ViaImage(name=key[0], place=f"line {line}", position=line, regions=[])
            images[key] = found
        counts[key] = row.get(_COUNT, "")
        if row[_SHAPE].strip() in ("", "{}"):
            continue
        try:
            found.regions.append(
                Region(
                    _decode_cell(row, _SHAPE, decoder=_shape_decoder, line=line, uri=uri),
                    _decode_cell(row, _ATTRIBUTES, decoder=_attributes_decoder, line=line, uri=uri),
                )
            )
        except InputError as error:
            found.problem = f"{error.place}: {error.problem}"
    for key, found in images.items():
        there = len(found.regions)
        # Programs that write more regions than they count lose none.
        if counts[key].isdecimal() and int(counts[key][:9]) > there and not found.problem:
            found.problem = f"{found.place}: only {there} of its {counts[key]} regions are there"
        yield found


def _decode_cell(
    row: Mapping[str, str], name: str, *, decoder: JsonDecoder[T], line: int, uri: str
) -> T:
    place, cell = f"line {line}: {name}", row[name].encode()
    value = decode_json(cell, decoder=decoder, uri=uri, place=place)
    if (key := repeated_key(cell)) is not None:
        raise InputError(uri=uri, place=place, problem=f"the key {key!r} is given twice")
    return value


class ViaFormat(Format, frozen=True, kw_only=True):
    """VIA's JSON exports, projects and CSV files, each about many images.

    Attributes:
        images: Root folder of the images.
        annotations: The JSON and CSV files.
        label_attribute: The attribute of regions that is their class. Without it, the one that
            all files share.
        class_name: The class of regions without a value of that attribute.
        _masks: Whether objects carry their outlines.
        _attribute: The attribute that is the class; empty where no region has one.
    """

    SUMMARY = "VIA (VGG Image Annotator) JSON and CSV: boxes, polygons, circles, ellipses"
    FILES = ("annotations",)
    # VIA lists every image that was opened, also those that nobody has annotated.
    UNANNOTATED = "drop"
    # Pixels are counted from 0.
    first_pixel = 0.0
    # Corners in pixels.
    box_reading = BoxReading()

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    annotations: Annotated[
        list[Location], msgspec.Meta(min_length=1), named("JSON or CSV file of VIA")
    ]
    label_attribute: Annotated[str, named("attribute of regions that is their class")] | None = None
    class_name: (
        Annotated[str, msgspec.Meta(min_length=1), named("class of regions without one")] | None
    ) = None
    match: Match = "path"
    _masks: bool = False
    _attribute: str = ""

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes files of VIA; of several that say the same about an image, one is read."""
        files = {}
        problem = ""
        for path in folder.few(".json", ".csv"):
            try:
                found = _sniff(folder, path)
            except InputError as error:
                problem = problem or str(error)
                continue
            if found:
                files[path] = found
        if not files and not problem:
            return None
        what = counted(len(files) or 1, "VIA file")
        if problem:
            return Recognized(what=what, problem=problem)
        sources = Sources(folder, what=what)
        # {folder of images: {image: its regions}}
        known: dict[str, dict[str, tuple[str, object]]] = {}
        notes = []
        # The longest file comes first, so that parts of it are left out; JSON comes before CSV.
        # The file that the user named comes before all.
        order = sorted(files, key=lambda path: (-len(files[path]), path.lower().endswith(".csv")))
        order.sort(key=lambda path: path != folder.first)
        for path in order:
            found = files[path]
            images = sources.find_images(path, [*found])
            others = known.setdefault(images.folder, {})
            unlike = (
                name for name in found if others.get(name, ("", found[name]))[1] != found[name]
            )
            if (name := next(unlike, None)) is not None:
                other = others[name][0]
                if other == folder.first:
                    notes.append(f"{path} says something else about {name}, and is not read")
                    continue
                command = (
                    f"shardbeam build via --images {shlex.quote(folder.uri(images.folder))} "
                    f"--annotations {shlex.quote(folder.uri(other))} "
                    f"--output tfrecords/{folder.dataset_name()}"
                )
                problem = f"{other} and {path} differ about {name}; name the right one"
                return Recognized(what=what, problem=f"{problem}, such as in `{command}`")
            others |= {
                name: (path, regions) for name, regions in found.items() if name not in others
            }
            owners = {others[name][0] for name in found}
            if path not in owners:
                notes.append(f"{path} says what {', '.join(sorted(owners))} says, and is not read")
                continue
            sources.add(path, images, split=split_in(path) or split_in(images.folder))
        heads = (folder.head(path) for path in files)
        outlines = any(b"polygon" in head or b"ellipse" in head for head in heads)
        by_split = dict(sorted(sources.by_split.items()))
        return Recognized(what=what, sources=by_split, notes=notes, outlines=outlines)

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects, and masks if these are wanted."""
        return frozenset({Kind.DETECTION, *({Kind.INSTANCE_MASKS} if self._masks else ())})

    def resolve(self) -> ViaFormat:
        """Finds the attribute that is the class.

        Raises:
            InputError: A file cannot be read.
            Problem: No region has a class, or several attributes may be it.
        """
        files = {
            name: count_attributes(read_via_file(uri, storage=storage_for(uri)))
            for name, uri in zip(short_names(self.annotations), self.annotations, strict=True)
        }
        return msgspec.structs.replace(self, _attribute=self._find_attribute(files))

    def _find_attribute(self, files: Mapping[str, Attributes]) -> str:
        """Finds the attribute that is the class: the given one, or the one that all files share.

        Args:
            files: `{file: its attributes}`.

        Returns:
            Its name; empty if no region has an attribute.

        Raises:
            Problem: No region has a class, or several attributes may be it.
        """
        given = self.label_attribute
        drawn = {name: each for name, each in files.items() if each.regions}
        named = [each for each in drawn.values() if each.counts]
        shared = {*named[0].counts}.intersection(*(it.counts for it in named)) if named else set()
        found = "; ".join(f"{name}: {each.describe()}" for name, each in drawn.items())
        found = f"; attributes of the regions: {found}" if named else ""
        if given is None and named and len(shared) != 1:
            fix = "name the attribute that is the class: --label-attribute NAME"
            raise Problem(("label_attribute",), f"{fix} (label_attribute: NAME){found}")
        attribute = given if given is not None else next(iter(shared), "")
        without = [name for name, each in drawn.items() if attribute not in each.counts]
        if without and self.class_name is None:
            value = f"value of {attribute!r}" if attribute else "class"
            raise Problem(
                ("class_name",),
                f"no region in {', '.join(without[:3])} has a {value}: name the class of such "
                f"regions with --class-name NAME (class_name: NAME){found}",
            )
        return attribute

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file, image by image; an image without regions has no entry."""
        uri = self.annotations[file_index]
        file_name = short_names(self.annotations)[file_index]
        found = FoundClasses()
        for image in read_via_file(uri, storage=storage):
            if not image.regions and not image.problem:
                continue
            key = normalize_key(image.name)
            problem = key_problem(key)
            entry = AnnotationEntry(
                key=key if problem is None else escape_key(key) or escape_key(image.place),
                file_index=file_index,
                position=image.position,
                origin=f"{file_name}: {escape_key(image.place)}",
            )
            detail = f"{image.place}: {problem}" if problem else image.problem
            if not detail:
                try:
                    annotations = self._read_regions(image.regions)
                except ValueError as error:
                    detail = f"{image.place}: {error}"
            if detail:
                reason = Reason.UNREADABLE_NAME if problem else Reason.ANNOTATION_MALFORMED
                yield with_defect(entry, escape_key(f"{file_name}: {detail}"), reason=reason)
                continue
            annotations = with_replaced(annotations, image.lone_surrogates)
            annotations, outlines = drop_outlines(annotations, unless=self._masks)
            for item in annotations.objects:
                check_class_name(item.label, uri=uri)
            found.add(annotations)
            encoded = encode_annotations(annotations)
            yield msgspec.structs.replace(entry, annotations=encoded, outlines=outlines)
        for name in found.names:
            yield Category(name=name, origin=uri)
        yield from lost_classes(found.lost, origin=uri)

    def _read_regions(self, regions: Sequence[Region]) -> ImageAnnotations:
        """Reads the objects of an image.

        Raises:
            ValueError: A region lacks what its shape needs, or its class is neither a text nor
                options.
        """
        corrections = Corrections()
        objects: list[ObjectAnnotation] = []
        for index, region in enumerate(regions):
            try:
                labels = _classes((region.region_attributes or {}).get(self._attribute))
                item = _read_shape(region.shape_attributes)
            except ValueError as error:
                raise ValueError(f"regions[{index}]: {error}") from error
            if not labels and self.class_name is not None:
                labels = [self.class_name]
            if not labels:
                unknown = f"{region.shape_attributes.name} without a class"
                corrections.note(Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED, unknown)
            for label in labels[1:]:
                corrections.note(Correction.OBJECT_OF_SEVERAL_CLASSES_REPEATED, labels[0], label)
            for label in labels:
                if item is None:
                    corrections.note_lost(label, region.shape_attributes.name)
                    continue
                objects.append(msgspec.structs.replace(item, label=label))
        return ImageAnnotations(image_id="", objects=tuple(objects), **corrections.fields())


def _sniff(folder: Folder, path: str) -> Mapping[str, object]:
    """Returns the annotated images of a file and their regions; nothing if it is not one of VIA.

    Raises:
        InputError: It is one of VIA, and cannot be read.
    """
    head = folder.head(path)
    if b"region_shape_attributes" not in head and not (b"filename" in head and b"regions" in head):
        return {}
    uri = folder.location(path)
    try:
        return {
            image.name: msgspec.to_builtins(image.regions)
            for image in read_via_file(uri, storage=storage_for(uri))
        }
    except InputError:
        if b"shape_attributes" in head and b"region_attributes" in head:
            raise
        return {}


_CORNERS = 64
_CLOSED = ("polygon", "polyline")


class Attributes(NamedTuple):
    """The attributes that the regions of a file have.

    Attributes:
        regions: The number of regions.
        counts: `{attribute: regions that have a value of it}`.
    """

    regions: int
    counts: Mapping[str, int]

    def describe(self) -> str:
        """Names the attributes in an error."""
        named = [f"{name!r} ({count:,} of {self.regions:,})" for name, count in self.counts.items()]
        return ", ".join(named[:8]) or "none"


def count_attributes(images: Iterable[ViaImage]) -> Attributes:
    """Counts the attributes of a file's regions that may be their class."""
    counts: Counter[str] = Counter()
    regions = 0
    for region in (region for image in images for region in image.regions):
        regions += 1
        for name, value in (region.region_attributes or {}).items():
            with contextlib.suppress(ValueError):
                counts[name] += bool(_classes(value))
    return Attributes(regions, dict(sorted((+counts).items())))


def _classes(value: object) -> list[str]:
    """Returns the classes that a value names: the text itself, or the options that are checked."""
    if isinstance(value, dict):
        names = [name for name, is_set in value.items() if is_set in (True, "true")]
    elif value is None or isinstance(value, str):
        names = [value or ""]
    elif isinstance(value, int) and not isinstance(value, bool):
        names = [str(value)]
    else:
        raise ValueError(f"region_attributes: expected a text as class, got {str(value)[:40]!r}")
    return [name for name in (" ".join(name.split()) for name in names) if name]


def _read_shape(shape: Shape) -> ObjectAnnotation | None:
    """Reads an outline; returns None where it has no area."""
    if shape.name == "rect":
        x, y, width, height = _numbers(shape, "x", "y", "width", "height")
        return ObjectAnnotation(label="", bbox=(x, y, x + width, y + height))
    if shape.name in _CLOSED:
        xs, ys = shape.all_points_x or [], shape.all_points_y or []
        if len(xs) != len(ys):
            raise ValueError(f"{len(xs)} all_points_x and {len(ys)} all_points_y")
        polygon = [_finite(value) for point in zip(xs, ys, strict=True) for value in point]
        # A point, or a line between two.
        return polygon_object(polygon) if len(xs) > 2 else None
    if shape.name == "circle":
        x, y, radius = _numbers(shape, "cx", "cy", "r")
        _check_radii(shape, radius)
        return ellipse_object((x, y), (radius, radius), corners=_CORNERS)
    if shape.name == "ellipse":
        x, y, across, down = _numbers(shape, "cx", "cy", "rx", "ry")
        _check_radii(shape, across, down)
        angle = _finite(shape.theta) % (2 * math.pi)
        return ellipse_object((x, y), (across, down), angle=angle, corners=_CORNERS)
    if shape.name == "point":
        return None
    raise ValueError(f"unknown shape {shape.name[:40]!r}")


def _check_radii(shape: Shape, *radii: float) -> None:
    if min(radii) < 0:
        raise ValueError(f"a {shape.name} with a negative radius, {min(radii)}")


def _numbers(shape: Shape, *names: str) -> list[float]:
    values = [getattr(shape, name) for name in names]
    if None in values:
        raise ValueError(f"a {shape.name} without {names[values.index(None)]}")
    return [*map(_finite, values)]


def _finite(value: float) -> float:
    if not abs(value) <= MAX_FLOAT32:
        raise ValueError(f"expected a number of pixels, got {value}")
    return value

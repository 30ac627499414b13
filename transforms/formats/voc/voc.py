"""Pascal VOC: an XML file for each image, lists of the images of splits, and segmentation PNGs.

The format: the development kits of http://host.robots.ox.ac.uk/pascal/VOC/.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple, TypeAlias

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import did_you_mean
from shardbeam.configs.schema import Name, PredefinedSplits
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import present_kinds
from shardbeam.transforms.core.reasons import Correction, Exclusion
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    MaskRole,
    ObjectAnnotation,
    Value,
    encode_annotations,
)
from shardbeam.transforms.examples.features import (
    ExtraFeature,
    FeatureKind,
    FeatureRole,
    value_list,
)
from shardbeam.transforms.examples.geometry.boxes import Box, box_around, turn_box
from shardbeam.transforms.formats.annotation_file import drop_outlines, lost_classes
from shardbeam.transforms.formats.base import Kind, Match, Place, Role
from shardbeam.transforms.formats.mask_values import (
    MaskClassesKey,
    MaskValuesKey,
    check_mask_keys,
)
from shardbeam.transforms.formats.names import is_hidden, is_image_name, normalize_key
from shardbeam.transforms.formats.parsing.root_files import RootFiles, SplitList
from shardbeam.transforms.formats.parsing.xml_file import NUMBER, XmlElement, read_xml
from shardbeam.transforms.formats.recognition import Folder, Recognized
from shardbeam.transforms.formats.split_folders import TopFolderFormat, sort_splits
from shardbeam.transforms.formats.voc.folders import (
    ANNOTATION_FOLDERS,
    IMAGE_FOLDERS,
    LABEL_MAP,
    MASK_FOLDERS,
    MapClasses,
    choose_lists,
    find_folders,
    find_lists,
    join_text,
    read_list,
    read_maps,
    recognize_voc,
)
from shardbeam.transforms.storage.base import Storage

# Reads the objects of a Pascal VOC file: boxes, outlines, turned rectangles and attributes.

Coordinates: TypeAlias = Literal["one_based", "as_given"]
DIFFICULT = "image/object/difficult"
TRUNCATED = "image/object/truncated"
VIEW = "image/object/view"
UNSPECIFIED = "Unspecified"
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


def _edges(first: float, last: float) -> tuple[float, float]:
    """Returns the edges before a box's first pixel and after its last, counted from 1.

    Numbers in the wrong order keep it: whether they are exchanged depends on the image's size. Then
    the smaller one is that of the first pixel; below 1 it is no pixel's number, and stays as it is.
    """
    if first <= last:
        return first - 1, last
    return first, last - 1 if last >= 1 else last


def read_pixels(sizes: Sequence[XmlElement], side: str) -> int:
    """Returns the first side above 0 pixels; 0 if there is none."""
    for size in sizes:
        value = size.one(side)
        if value is not None and value.text:
            return value.pixels()
    return 0


def label_of(element: XmlElement) -> str:
    """Returns the class of an object.

    Raises:
        InputError: It has none.
    """
    name = element.one("name")
    if name is None or not name.text:
        raise element.error("an <object> without <name>")
    return name.text


class Shape(NamedTuple):
    """What an object looks like.

    Attributes:
        box: Its box; None where it has none.
        outlines: `x, y, …` of each of its outlines.
        computed: How and from what the box was computed; None where it is as given.
        area: Its area in pixels², if that is not the box's; otherwise negative.
    """

    box: Box | None
    outlines: list[list[float]]
    computed: tuple[Correction, object] | None = None
    area: float = -1.0


def _number(element: XmlElement, tag: str) -> float:
    value = element.one(tag)
    if value is None:
        raise element.error(f"an <object> whose <{element.tag}> has no <{tag}>")
    return value.number()


def _read_turned(element: XmlElement) -> Shape:
    """Reads roLabelImg's turned rectangle: its centre, its sides and its angle in radians.

    The angle is clockwise as one sees the image: https://github.com/cgvict/roLabelImg.
    """
    x, y, width, height, angle = (_number(element, tag) for tag in ("cx", "cy", "w", "h", "angle"))
    box = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    corners = turn_box(box, angle=angle)
    return Shape(
        box_around(corners), [corners], (Correction.BOX_TURNED, (*box, angle)), abs(width * height)
    )


def _read_outline(element: XmlElement) -> list[float]:
    """Reads an outline: LabelMe's `<pt><x>…</x><y>…</y></pt>`, or `<x1>…</x1><y1>…</y1><x2>…`."""
    points = element.all("pt")
    if points:
        return [_number(point, tag) for point in points for tag in ("x", "y")]
    coordinates = {child.tag: child for child in element.children}
    outline: list[float] = []
    while (x := coordinates.get(f"x{len(outline) // 2 + 1}")) is not None:
        y = coordinates.get(f"y{x.tag[1:]}")
        if y is None:
            raise element.error(f"a <polygon> with <{x.tag}> has no <y{x.tag[1:]}>")
        outline += (x.number(), y.number())
    return outline


def read_attributes(element: XmlElement) -> dict[str, Value]:
    """Reads what an object says besides its box, without zeros and empty texts."""
    pose = element.one("pose")
    found: dict[str, Value] = {
        DIFFICULT: read_flag(element.one("difficult")),
        TRUNCATED: read_flag(element.one("truncated")),
        VIEW: "" if pose is None or pose.text == UNSPECIFIED else pose.text,
    }
    return {key: value for key, value in found.items() if value}


def read_flag(value: XmlElement | None) -> int:
    """Reads 0 or 1; other texts that tools write, such as "Unspecified", count as 0."""
    if value is None:
        return 0
    if NUMBER.fullmatch(value.text):
        return int(float(value.text) > 0)
    return int(value.text.casefold() in ("true", "yes"))


def read_shape(element: XmlElement, *, coordinates: Coordinates) -> Shape:
    """Reads an object's box and outlines; the numbers of outlines are taken as they are."""
    turned = element.one("robndbox")
    if turned is not None:
        return _read_turned(turned)
    outlines = [_read_outline(polygon) for polygon in element.all("polygon")]
    box = _read_box(element, coordinates=coordinates)
    if box is not None:
        return Shape(box, outlines)
    usable = [value for outline in outlines if len(outline) >= 6 for value in outline]
    if usable:
        return Shape(box_around(usable), outlines, (Correction.BOX_FROM_POLYGONS, None))
    segments = element.one("segm")
    drawn = None if segments is None else segments.one("box")
    if drawn is None:
        return Shape(None, [])
    xmin, ymin, xmax, ymax = (_number(drawn, tag) for tag in _CORNERS)
    return Shape((xmin, ymin, xmax, ymax), [])


def _read_box(element: XmlElement, *, coordinates: Coordinates) -> Box | None:
    """Reads an object's `bndbox`; returns None where it has none."""
    box = element.one("bndbox")
    if box is None:
        return None
    xmin, ymin, xmax, ymax = (_number(box, tag) for tag in _CORNERS)
    if coordinates == "as_given":
        return xmin, ymin, xmax, ymax
    xmin, xmax = _edges(xmin, xmax)
    ymin, ymax = _edges(ymin, ymax)
    return xmin, ymin, xmax, ymax


_LIST_FOLDER = "imagesets"
_OTHER_MASK_FOLDERS = ("segmentationclass", "segmentationobject")


# The depth of `annotation/object/polygon/pt/x`; deeper elements are not read.
_MAX_DEPTH = 5


class VocFormat(TopFolderFormat, frozen=True, kw_only=True):
    """Pascal VOC: `JPEGImages`, `Annotations`, `ImageSets`, `Segmentation*` below one folder.

    Files are joined by their names without extension and by their folders, without folders named
    like `JPEGImages` and `Annotations`. The XML's `filename` is not used.

    Without lists, a top folder is a split if it is named like one and holds an annotated image.

    Attributes:
        root: The folder that holds everything, at any depth (such as `VOCdevkit/VOC2012`).
        splits: The lists of `ImageSets` that are splits, or the folders if there are no lists. By
            default the lists train, val and test, or trainval and test where train and val are
            missing, without lists that name no image; or all folders.
        image_set: The folder of `ImageSets` that holds the lists.
        coordinates: Whether boxes give the numbers of their first and last pixels, counted
            from 1, as VOC does; or edges, from 0, which are taken as they are.
        semantic: Whether images carry the maps of `SegmentationClass`.
        mask_classes: `{class id: name}` of the classes of maps.
        mask_values: `{value of a pixel: class id, or ignore}`, if values are no class ids.
        _masks: Whether images carry the maps of `SegmentationObject`.
        _lists: The lists of the splits, in order. A split has several lists where the root holds
            several datasets.
        _copies: Folders of XML files that are not read, because they repeat others:
            `{folder: (number of its files, number of those with the names of others)}`.
        _has_image_folder: Whether there is a `JPEGImages`, so that pictures elsewhere are input
            only if they are annotated.
        _maps: The classes of the maps and how they are read; empty where no maps are wanted.
    """

    SUMMARY = "Pascal VOC XML: boxes, and segmentation PNGs"
    UNANNOTATED = "drop"
    ROOTS = ("root",)
    CHOOSES_SPLITS = True
    lists_annotations = True
    # Corners in pixels.
    box_reading = BoxReading()

    root: Annotated[
        Location, named("folder that contains JPEGImages, Annotations and ImageSets", metavar="DIR")
    ]
    splits: PredefinedSplits | None = None
    image_set: Annotated[Name, named("folder in ImageSets with the lists of splits")] = "Main"
    coordinates: Annotated[
        Coordinates,
        named("count the pixels of boxes from 1, or take the numbers as they are"),
    ] = "one_based"
    semantic: Annotated[bool, named("write the maps in SegmentationClass")] = False
    mask_classes: MaskClassesKey = {}
    mask_values: MaskValuesKey = {}
    match: Match = "path"
    _masks: bool = False
    _lists: tuple[SplitList, ...] = ()
    _copies: Mapping[str, tuple[int, int]] = {}
    _has_image_folder: bool = False
    _maps: MapClasses = MapClasses()

    def __post_init__(self) -> None:
        needed = "" if self.semantic else "semantic: true"
        check_mask_keys(classes=self.mask_classes, values=self.mask_values, key=needed)

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes XML files with boxes."""
        return recognize_voc(folder)

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects, and the masks and maps that are wanted."""
        asked = {Kind.INSTANCE_MASKS: self._masks, Kind.SEMANTIC: self.semantic}
        return frozenset({Kind.DETECTION}) | present_kinds(asked)

    @functools.cached_property
    def _mask_roles(self) -> frozenset[MaskRole]:
        roles = {MaskRole.VOC_OBJECT: self._masks, MaskRole.VOC_CLASS: self.semantic}
        return frozenset(role for role, is_asked in roles.items() if is_asked)

    def resolve(self) -> VocFormat:
        """Finds the lists of the splits, and the classes of the maps.

        Raises:
            InputError: There are no XML files, a list in `splits` is missing or does not list
                images, or a file cannot be read.
            Problem: Nothing says what the values of maps mean, or the classes are named twice.
        """
        files = RootFiles(self.root)
        files.check()
        below = (path for folder in ("Annotations", "") for path, _ in files.walk(folder))
        if not self.semantic and not any(
            path.lower().endswith(".xml") and not is_hidden(path) for path in below
        ):
            raise InputError(
                uri=self.root, problem="no .xml files found: expected Annotations/ below the root"
            )
        maps = MapClasses()
        if self.semantic:
            maps = read_maps(files, mask_classes=self.mask_classes, mask_values=self.mask_values)
        lists, has_image_folder = find_lists(files, image_set=self.image_set)
        unresolved = msgspec.structs.replace(self, _copies={})
        tops, copies = find_folders(
            files, place=lambda path: unresolved.place(path, root=0), match=self.match
        )
        splits: Sequence[str] = ()
        if tops.are_splits and not lists:
            splits = self._choose_folders(sort_splits(tops.splits))
        return msgspec.structs.replace(
            self,
            _lists=()
            if splits
            else tuple(
                choose_lists(lists, splits=self.splits, image_set=self.image_set, root=self.root)
            ),
            _splits=tuple(splits),
            _mixed=tops.describe() if tops.is_mixed and not lists else "",
            _copies=copies,
            _has_image_folder=has_image_folder,
            _maps=maps,
        )

    def _choose_folders(self, folders: Sequence[str]) -> Sequence[str]:
        for split in self.splits or ():
            if split not in folders:
                raise InputError(
                    uri=self.root,
                    problem=f"there is no list ImageSets/{self.image_set}/{split}.txt, and no "
                    f"folder {split!r} with annotated images{did_you_mean(split, known=folders)}; "
                    f"found: {', '.join(folders)}",
                )
        return self.splits or folders

    def warnings(self) -> Iterator[str]:
        """Warns about copies of XML files and about unnamed classes; says how maps are read."""
        for folder, (count, same) in sorted(self._copies.items()):
            yield (
                f"{folder or self.root}: {count:,} XML files are not read: their images are not "
                f"there, and {same:,} of them have the names of XML files beside images"
            )
        if self._maps.reading.said:
            yield self._maps.reading.said
        first = self._maps.first_mask
        if not first:
            return
        fix = (
            f"name them in a {LABEL_MAP} in the root, one per line (name:r,g,b::), from 0, or "
            f"with mask_classes: {self._maps.reading.naming}"
        )
        if self._maps.ids:
            yield (
                f"{first}: its colours look like VOC's, so the maps' classes have "
                f"VOC's twenty names; other tools use these colours, too: if the classes are "
                f"others, {fix}"
            )
        elif not self._maps.reading.values.ids:
            yield (
                f"{first}: the palette is not VOC's, so the maps' values stay numbers "
                f"without names, and do not match the ids of the objects' classes; {fix}"
            )
        else:
            yield (
                f"{first}: the maps' classes have no names, and their ids do not match "
                f"those of the objects' classes; {fix}"
            )

    def declared_categories(self) -> Iterator[Category]:
        """Returns the classes of the maps, which perhaps no file declares."""
        return self._categories(self._maps.ids)

    @property
    def first_pixel(self) -> float:
        """As `coordinates` counts."""
        return 1.0 if self.coordinates == "one_based" else 0.0

    def predefined_splits(self) -> Sequence[str]:
        """Returns the splits that have a list, or the folders that are splits.

        Raises:
            Problem: Some folders are named like splits and others are not.
        """
        folders = super().predefined_splits()
        return folders or list(dict.fromkeys(item.split for item in self._lists))

    def join_text(self, key: str) -> str:
        """Returns the text that joins the files of an image."""
        return join_text(key)

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares VOC's attributes of objects, under TF Object Detection API's keys.

        `difficult` and `truncated` default to 0.
        """
        view = value_list(VIEW, FeatureKind.BYTES, FeatureRole.TEXT)
        return (
            ExtraFeature(value_list(DIFFICULT, FeatureKind.INT64), per_object=True),
            ExtraFeature(value_list(TRUNCATED, FeatureKind.INT64), per_object=True),
            ExtraFeature(view, per_object=True, default=UNSPECIFIED),
        )

    def place(self, path: str, *, root: int) -> Place:
        """Distinguishes images, XML files and masks by their folders and extensions."""
        key = normalize_key(path)
        as_image = Place(role=Role.IMAGE, key=key, join=key)
        if is_hidden(key):
            return as_image
        folders = [folder.casefold() for folder in key.split("/")[:-1]]
        if _LIST_FOLDER in folders or key == LABEL_MAP:
            return Place(role=Role.OTHER)
        for folder in folders:
            if folder.startswith(_OTHER_MASK_FOLDERS):
                role = MASK_FOLDERS.get(folder)
                if role in self._mask_roles and key.lower().endswith(".png"):
                    values = self._maps.reading.values
                    return Place(role=Role.MASK, join=join_text(key), mask=role, values=values)
                return Place(role=Role.OTHER)
        if key.lower().endswith(".xml"):
            if key.rpartition("/")[0] in self._copies:
                return Place(role=Role.OTHER)
            return Place(role=Role.ANNOTATION, join=join_text(key))
        if is_image_name(key):
            return Place(role=Role.IMAGE, key=key, join=join_text(key))
        return as_image

    def annotation_files(self) -> Sequence[str]:
        """Returns the lists of the splits, and the label map if there is one."""
        lists = [item.file.uri for item in self._lists]
        return [*lists, self._maps.label_map] if self._maps.label_map else lists

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Declares the classes of maps, and puts the images of a list into its split."""
        yield from self._categories(self._maps.ids)
        for item in self._lists[file_index : file_index + 1]:
            folder = item.path[: -len(f"ImageSets/{self.image_set}/{item.split}.txt")]
            for line, name in read_list(item):
                key = join_text(normalize_key(folder + name), is_id=True)
                yield item.entry(key, line=line, file_index=file_index)

    def read_listed(
        self, data: bytes, *, path: str, root: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses the XML file of one image.

        Raises:
            InputError: The file is not well-formed XML, its root is not `annotation`, it declares
                or uses entities, or a required value is missing, not a number, or given twice.
        """
        annotation = read_xml(data, root="annotation", max_depth=_MAX_DEPTH, uri=path)
        sizes = annotation.all("size")
        width, height = read_pixels(sizes, "width"), read_pixels(sizes, "height")
        # LabelMe's web tool writes the size like this.
        sizes = annotation.all("imagesize")
        width, height = width or read_pixels(sizes, "ncols"), height or read_pixels(sizes, "nrows")
        corrections = Corrections()
        objects = []
        for number, element in enumerate(annotation.all("object"), 1):
            if read_flag(element.one("deleted")):
                corrections.note(Correction.DELETED_OBJECT_DROPPED, label_of(element))
                continue
            label, shape, attributes = (
                label_of(element),
                read_shape(element, coordinates=self.coordinates),
                read_attributes(element),
            )
            if self._maps.ids and label not in self._maps.ids:
                corrections.note(Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED, label)
            elif shape.box is None:
                corrections.note_lost(label, "no bndbox")
            else:
                if shape.computed is not None:
                    corrections.note(*shape.computed, shape.box)
                # `SegmentationObject` numbers objects by their order in the file.
                outlines = msgspec.json.encode(shape.outlines) if shape.outlines else b""
                objects.append(
                    ObjectAnnotation(
                        label=label,
                        bbox=shape.box,
                        area=shape.area,
                        annotation_id=number,
                        segmentation=outlines,
                        attributes=attributes,
                    )
                )
        if self._maps.ids and not self.annotation_files():
            # Without annotation files, nothing else declares classes that only maps show.
            yield from self._categories(self._maps.ids)
        else:
            yield from self._categories(dict.fromkeys(item.label for item in objects))
        yield from lost_classes(corrections.lost, origin=self.root)
        annotations = ImageAnnotations(
            image_id="", width=width, height=height, objects=tuple(objects), **corrections.fields()
        )
        annotations, dropped = drop_outlines(annotations, unless=self._masks)
        yield AnnotationEntry(
            key=join_text(normalize_key(path)),
            annotations=encode_annotations(annotations),
            origin=path,
            split=self.split_listed(normalize_key(path)),
            outlines=dropped,
        )

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion | None:
        """Leaves out pictures without annotations outside of the folders of images.

        These are pictures in a folder of annotations and, if there is a `JPEGImages`, pictures
        beside it, such as drawings of the annotations.
        """
        folders = [folder.casefold() for folder in key.split("/")[:-1]]
        if is_hidden(key) or not is_image_name(key) or IMAGE_FOLDERS.intersection(folders):
            return None
        if ANNOTATION_FOLDERS.intersection(folders):
            return Exclusion.ANNOTATION_FOLDER
        return Exclusion.OUTSIDE_IMAGE_FOLDER if self._has_image_folder else None

    def _categories(self, names: Mapping[str, object]) -> Iterator[Category]:
        for name in names:
            # All files share one origin, so that equal categories are merged.
            yield Category(name=name, source_id=self._maps.ids.get(name), origin=self.root)

"""Pascal VOC: an XML file for each image, lists of the images of splits, and segmentation PNGs.

The format: the development kits of http://host.robots.ox.ac.uk/pascal/VOC/.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.nearest import did_you_mean
from shardbeam.configs.problem import Problem
from shardbeam.configs.schema import Name, PredefinedSplits
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Correction, Exclusion
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ImageRef,
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
from shardbeam.transforms.formats.annotation_file import lost_classes, text_lines
from shardbeam.transforms.formats.base import Format, Kind, Match, Place, Role
from shardbeam.transforms.formats.box_format import BoxReading
from shardbeam.transforms.formats.mask_values import (
    FirstMaps,
    MaskClassesKey,
    MaskReading,
    MaskValuesKey,
    check_mask_keys,
    decide_mask_values,
    given_values,
    ids_of_classes,
    look_at_maps,
)
from shardbeam.transforms.formats.names import (
    is_hidden,
    is_image_name,
    loosened,
    normalize_key,
)
from shardbeam.transforms.formats.parsing.root_files import RootFiles, SplitList, read_file
from shardbeam.transforms.formats.parsing.roots import common_folder
from shardbeam.transforms.formats.parsing.xml_file import NUMBER, XmlElement, read_xml
from shardbeam.transforms.formats.recognition import Folder, Recognized, by_split, counted
from shardbeam.transforms.formats.split_folders import (
    TopFolders,
    mixed_problem,
    sort_splits,
    sort_tops,
)
from shardbeam.transforms.images.mask_file import has_voc_colours
from shardbeam.transforms.storage.base import Storage

# The classes of the challenges, in the order of their ids: 1 to 20 in SegmentationClass.
VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)

# `trainval` repeats the two splits before it, so it is used only if both are missing.
_BOTH = "trainval"
_DEFAULT_SPLITS = ("train", "val", _BOTH, "test")
_LABEL_MAP = "labelmap.txt"
# Names that tools give the background and the border in a label map; they are not classes.
_NO_CLASSES = frozenset({"background", "ignored"})

# Names of folders by their content, in lower case. They are left out when files are joined.
_IMAGE_FOLDER = "JPEGImages"
_IMAGE_FOLDERS = frozenset({"jpegimages", "pngimages", "images", "image", "imgs", "img"})
_ANNOTATION_FOLDERS = frozenset({"annotations", "annotation", "labels", "xmls", "xml"})
_LIST_FOLDER = "imagesets"
# The root of VOC's XML files.
_ROOT = re.compile(rb"<annotation[\s>]")
_MASK_FOLDERS = {
    "segmentationclass": MaskRole.VOC_CLASS,
    "segmentationclasspng": MaskRole.VOC_CLASS,
    "segmentationobject": MaskRole.VOC_OBJECT,
    "segmentationobjectpng": MaskRole.VOC_OBJECT,
}
_OTHER_MASK_FOLDERS = ("segmentationclass", "segmentationobject")

# A line of `aeroplane_train.txt`: whether an image shows the class.
_PRESENCE = re.compile(r"\S+\s+(-1|0|1)")

_DIFFICULT = "image/object/difficult"
_TRUNCATED = "image/object/truncated"
_VIEW = "image/object/view"
_UNSPECIFIED = "Unspecified"

# The depth of `annotation/object/polygon/pt/x`; deeper elements are not read.
_MAX_DEPTH = 5
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class VocFormat(Format, frozen=True, kw_only=True):
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
        mask_classes: `{class id: name}` of the classes in these maps, in place of `labelmap.txt`.
        mask_values: `{value of a pixel: class id, or ignore}`, if values are no class ids; 0 is the
            background unless it is named.
        _masks: Whether images carry the maps of `SegmentationObject`.
        _lists: The lists of the splits, in order. A split has several lists where the root holds
            several datasets.
        _splits: The folders that are splits.
        _mixed: The root's folders, in words, if only some of them are named like splits.
        _copies: Folders of XML files that are not read, because they repeat others:
            `{folder: (number of its files, number of those with the names of others)}`.
        _has_image_folder: Whether there is a `JPEGImages`, so that pictures elsewhere are input
            only if they are annotated.
        _class_ids: `{name: id}` of the classes in the maps; empty where no maps are wanted.
        _label_map: URI of the file that names these classes, if there is one.
        _first_mask: Path of the map whose palette decides whether the classes are VOC's, if there
            is a map and no file names the classes.
        _mask_reading: How the maps are read.
    """

    SUMMARY = "Pascal VOC XML: boxes, and segmentation PNGs"
    UNANNOTATED = "drop"
    ROOTS = ("root",)
    CHOOSES_SPLITS = True
    lists_annotations = True

    root: Annotated[
        Location, named("folder that contains JPEGImages, Annotations and ImageSets", metavar="DIR")
    ]
    splits: PredefinedSplits | None = None
    image_set: Annotated[Name, named("folder in ImageSets with the lists of splits")] = "Main"
    coordinates: Annotated[
        Literal["one_based", "as_given"],
        named("count the pixels of boxes from 1, or take the numbers as they are"),
    ] = "one_based"
    semantic: Annotated[bool, named("write the maps in SegmentationClass")] = False
    mask_classes: MaskClassesKey = {}
    mask_values: MaskValuesKey = {}
    match: Match = "path"
    _masks: bool = False
    _lists: tuple[SplitList, ...] = ()
    _splits: tuple[str, ...] = ()
    _mixed: str = ""
    _copies: Mapping[str, tuple[int, int]] = {}
    _has_image_folder: bool = False
    _class_ids: Mapping[str, int] = {}
    _label_map: str = ""
    _first_mask: str = ""
    _mask_reading: MaskReading = MaskReading()

    def __post_init__(self) -> None:
        needed = "" if self.semantic else "semantic: true"
        check_mask_keys(classes=self.mask_classes, values=self.mask_values, key=needed)

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes XML files with boxes.

        Without lists of `ImageSets`, upper folders that are named like splits are splits.
        """
        folders = folder.alike(
            ".xml",
            are_alike=lambda heads: all(_ROOT.search(head) for head in heads),
        )
        if not folders:
            return None
        tops = {
            "/".join(
                itertools.takewhile(
                    lambda part: part.casefold() not in _ANNOTATION_FOLDERS, path.split("/")
                )
            )
            for path in folders
        }
        files = [path for paths in folders.values() for path in paths]
        what = counted(len(files), "XML file")
        names = (posixpath.basename(path)[: -len(".xml")] for path in files)
        images = folder.find_images(names, near=files[0])
        if images is None:
            return Recognized(what=what, problem="none of their images is there")
        # The folders may have names that mean nothing here.
        joins = set(map(_join, folder.images))
        keys = {} if any(_join(path) in joins for path in files) else {"match": images.match}
        has_lists = any("/ImageSets/" in f"/{path}" for path in folder.named(".txt"))
        splits = by_split(sorted(tops))
        are_splits = "" not in splits and all(len(found) == 1 for found in splits.values())
        if are_splits and not (has_lists or keys):
            sources = {split: {"root": folder.uri(top)} for split, (top,) in splits.items()}
            return Recognized(what=what, sources=sources)
        root = common_folder([*sorted(tops), images.folder])
        return Recognized(what=what, sources={"": {"root": folder.uri(root), **keys}})

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects, and the masks and maps that are wanted."""
        asked = {Kind.INSTANCE_MASKS: self._masks, Kind.SEMANTIC: self.semantic}
        return frozenset({Kind.DETECTION, *(kind for kind, is_asked in asked.items() if is_asked)})

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
        maps = self._read_maps(files) if self.semantic else {}
        lists, has_image_folder = self._find_lists(files)
        tops, copies = self._look(files)
        splits: Sequence[str] = ()
        if tops.are_splits and not lists:
            splits = self._choose_folders(sort_splits(tops.splits))
        return msgspec.structs.replace(
            self,
            _lists=() if splits else tuple(self._choose_lists(lists)),
            _splits=tuple(splits),
            _mixed=tops.describe() if tops.is_mixed and not lists else "",
            _copies=copies,
            _has_image_folder=has_image_folder,
            **maps,
        )

    def _look(self, files: RootFiles) -> tuple[TopFolders, dict[str, tuple[int, int]]]:
        """Finds the top folders with annotated images, and the folders of copied XML files.

        A folder holds copies if none of its XML files has an image, and at least half of them have
        the names of XML files that have one.
        """
        # {text that joins: top folders of its images}
        images: dict[str, set[str]] = {}
        annotated: set[str] = set()
        # {folder: (name, text that joins) of its XML files}
        xmls: dict[str, list[tuple[str, str]]] = {}
        unresolved = msgspec.structs.replace(self, _copies={})
        for path, _ in files.walk():
            place = unresolved.place(path, root=0)
            if is_hidden(path) or place.role is Role.OTHER:
                continue
            text = loosened(place.join, self.match)
            if place.role is not Role.IMAGE:
                annotated.add(text)
            elif is_image_name(path):
                images.setdefault(text, set()).add(_top(place.join))
            if place.role is Role.ANNOTATION:
                folder, _, name = normalize_key(path).rpartition("/")
                xmls.setdefault(folder, []).append((name, text))
        used = [folder for folder, own in xmls.items() if any(text in images for _, text in own)]
        names = {name for folder in used for name, _ in xmls[folder]}
        counts = {
            folder: (len(own), sum(name in names for name, _ in own))
            for folder, own in xmls.items()
            if folder not in used
        }
        tops = itertools.chain.from_iterable(images[text] for text in annotated & images.keys())
        copies = {folder: count for folder, count in counts.items() if 2 * count[1] >= count[0]}
        return sort_tops(tops), copies

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
        if self._mask_reading.said:
            yield self._mask_reading.said
        if not self._first_mask:
            return
        fix = (
            f"name them in a {_LABEL_MAP} in the root, one per line (name:r,g,b::), from 0, or "
            "with mask_classes: {1: NAME, 2: NAME}"
        )
        if self._class_ids:
            yield (
                f"{self._first_mask}: its colours look like VOC's, so the maps' classes have "
                f"VOC's twenty names; other tools use these colours, too: if the classes are "
                f"others, {fix}"
            )
        elif not self._mask_reading.values.ids:
            yield (
                f"{self._first_mask}: the palette is not VOC's, so the maps' values stay numbers "
                f"without names, and do not match the ids of the objects' classes; {fix}"
            )
        else:
            yield (
                f"{self._first_mask}: the maps' classes have no names, and their ids do not match "
                f"those of the objects' classes; {fix}"
            )

    def declared_categories(self) -> Iterator[Category]:
        """Returns the classes of the maps, which perhaps no file declares."""
        return self._categories(self._class_ids)

    @property
    def first_pixel(self) -> float:
        """As `coordinates` counts."""
        return 1.0 if self.coordinates == "one_based" else 0.0

    @property
    def box_reading(self) -> BoxReading:
        """Corners in pixels."""
        return BoxReading()

    def predefined_splits(self) -> Sequence[str]:
        """Returns the splits that have a list, or the folders that are splits.

        Raises:
            Problem: Some folders are named like splits and others are not.
        """
        if self._mixed:
            raise mixed_problem(self.root, mixed=self._mixed)
        return self._splits or list(dict.fromkeys(item.split for item in self._lists))

    def split_listed(self, key: str) -> str:
        """Returns the image's top folder, if it is a split."""
        top = _top(_join(key))
        return top if top in self._splits else ""

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares VOC's attributes of objects, under TF Object Detection API's keys.

        `difficult` and `truncated` default to 0.
        """
        view = value_list(_VIEW, FeatureKind.BYTES, FeatureRole.TEXT)
        return (
            ExtraFeature(value_list(_DIFFICULT, FeatureKind.INT64), per_object=True),
            ExtraFeature(value_list(_TRUNCATED, FeatureKind.INT64), per_object=True),
            ExtraFeature(view, per_object=True, default=_UNSPECIFIED),
        )

    def place(self, path: str, *, root: int) -> Place:
        """Distinguishes images, XML files and masks by their folders and extensions."""
        key = normalize_key(path)
        as_image = Place(role=Role.IMAGE, key=key, join=key)
        if is_hidden(key):
            return as_image
        folders = [folder.casefold() for folder in key.split("/")[:-1]]
        if _LIST_FOLDER in folders or key == _LABEL_MAP:
            return Place(role=Role.OTHER)
        for folder in folders:
            if folder.startswith(_OTHER_MASK_FOLDERS):
                role = _MASK_FOLDERS.get(folder)
                if role in self._mask_roles and key.lower().endswith(".png"):
                    values = self._mask_reading.values
                    return Place(role=Role.MASK, join=_join(key), mask=role, values=values)
                return Place(role=Role.OTHER)
        if key.lower().endswith(".xml"):
            if key.rpartition("/")[0] in self._copies:
                return Place(role=Role.OTHER)
            return Place(role=Role.ANNOTATION, join=_join(key))
        if is_image_name(key):
            return Place(role=Role.IMAGE, key=key, join=_join(key))
        return as_image

    def annotation_files(self) -> Sequence[str]:
        """Returns the lists of the splits, and the label map if there is one."""
        lists = [item.file.uri for item in self._lists]
        return [*lists, self._label_map] if self._label_map else lists

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Declares the classes of maps, and puts the images of a list into its split."""
        yield from self._categories(self._class_ids)
        for item in self._lists[file_index : file_index + 1]:
            folder = item.path[: -len(f"ImageSets/{self.image_set}/{item.split}.txt")]
            for line, name in _read_list(item):
                key = _join(normalize_key(folder + name), is_id=True)
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
        width, height = _pixels(sizes, "width"), _pixels(sizes, "height")
        # LabelMe's web tool writes the size like this.
        sizes = annotation.all("imagesize")
        width, height = width or _pixels(sizes, "ncols"), height or _pixels(sizes, "nrows")
        corrections = Corrections()
        objects = []
        for number, element in enumerate(annotation.all("object"), 1):
            if _flag(element.one("deleted")):
                corrections.note(Correction.DELETED_OBJECT_DROPPED, _label(element))
                continue
            label, shape, attributes = _label(element), self._shape(element), _attributes(element)
            if self._class_ids and label not in self._class_ids:
                corrections.note(Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED, label)
            elif shape.box is None:
                corrections.note_lost(label, "no bndbox")
            else:
                if shape.computed is not None:
                    corrections.note(*shape.computed, shape.box)
                outlines = shape.outlines if self._masks else []
                # `SegmentationObject` numbers objects by their order in the file.
                objects.append(
                    ObjectAnnotation(
                        label=label,
                        bbox=shape.box,
                        area=shape.area,
                        annotation_id=number,
                        segmentation=msgspec.json.encode(outlines) if outlines else b"",
                        attributes=attributes,
                    )
                )
        if self._class_ids and not self.annotation_files():
            # Without annotation files, nothing else declares classes that only maps show.
            yield from self._categories(self._class_ids)
        else:
            yield from self._categories(dict.fromkeys(item.label for item in objects))
        yield from lost_classes(corrections.lost, origin=self.root)
        annotations = ImageAnnotations(
            image_id="",
            width=width,
            height=height,
            objects=tuple(objects),
            corrections=corrections,
            changes=corrections.changes,
            lost=corrections.lost,
        )
        yield AnnotationEntry(
            key=_join(normalize_key(path)),
            annotations=encode_annotations(annotations),
            origin=path,
            split=self.split_listed(normalize_key(path)),
        )

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion | None:
        """Leaves out pictures without annotations outside of the folders of images.

        These are pictures in a folder of annotations and, if there is a `JPEGImages`, pictures
        beside it, such as drawings of the annotations.
        """
        folders = [folder.casefold() for folder in key.split("/")[:-1]]
        if is_hidden(key) or not is_image_name(key) or _IMAGE_FOLDERS.intersection(folders):
            return None
        if _ANNOTATION_FOLDERS.intersection(folders):
            return Exclusion.ANNOTATION_FOLDER
        return Exclusion.OUTSIDE_IMAGE_FOLDER if self._has_image_folder else None

    def _categories(self, names: Mapping[str, object]) -> Iterator[Category]:
        for name in names:
            # All files share one origin, so that equal categories are merged.
            yield Category(name=name, source_id=self._class_ids.get(name), origin=self.root)

    def _shape(self, element: XmlElement) -> _Shape:
        """Reads an object's box and outlines; the numbers of outlines are taken as they are."""
        turned = element.one("robndbox")
        if turned is not None:
            return _read_turned(turned)
        outlines = [_read_outline(polygon) for polygon in element.all("polygon")]
        box = self._box(element)
        if box is not None:
            return _Shape(box, outlines)
        usable = [value for outline in outlines if len(outline) >= 6 for value in outline]
        if usable:
            return _Shape(box_around(usable), outlines, (Correction.BOX_FROM_POLYGONS, None))
        segments = element.one("segm")
        drawn = None if segments is None else segments.one("box")
        if drawn is None:
            return _Shape(None, [])
        xmin, ymin, xmax, ymax = (_number(drawn, tag) for tag in _CORNERS)
        return _Shape((xmin, ymin, xmax, ymax), [])

    def _box(self, element: XmlElement) -> Box | None:
        """Reads an object's `bndbox`; returns None where it has none."""
        box = element.one("bndbox")
        if box is None:
            return None
        xmin, ymin, xmax, ymax = (_number(box, tag) for tag in _CORNERS)
        if self.coordinates == "as_given":
            return xmin, ymin, xmax, ymax
        xmin, xmax = _edges(xmin, xmax)
        ymin, ymax = _edges(ymin, ymax)
        return xmin, ymin, xmax, ymax

    def _find_lists(self, files: RootFiles) -> tuple[dict[str, list[SplitList]], bool]:
        """Finds the lists of splits, and whether there is a `JPEGImages`."""
        folder = f"ImageSets/{self.image_set}"
        found: dict[str, list[SplitList]] = {}
        has_image_folder = files.holds(_IMAGE_FOLDER)
        # The root may hold VOCdevkit, or several years.
        for below in (folder, ""):
            for path, file in files.walk(below):
                head, _, name = path.rpartition("/")
                has_image_folder |= head.endswith(_IMAGE_FOLDER)
                is_list = name.endswith(".txt") and not is_hidden(path)
                if is_list and f"/{head}".endswith(f"/{folder}"):
                    item = SplitList(split=name.removesuffix(".txt"), path=path, file=file)
                    found.setdefault(item.split, []).append(item)
            if found:
                break
        return found, has_image_folder

    def _choose_lists(self, found: Mapping[str, Sequence[SplitList]]) -> Iterator[SplitList]:
        chosen: list[str] = []
        for split in self.splits or _DEFAULT_SPLITS:
            lists = sorted(found.get(split, ()), key=lambda item: item.path)
            names = [name for item in lists for _, name in _read_list(item)]
            if not self.splits and (not names or (split == _BOTH and chosen)):
                continue
            if not lists:
                raise InputError(
                    uri=self.root,
                    problem=f"there is no list ImageSets/{self.image_set}/{split}.txt"
                    f"{did_you_mean(split, known=found)}; found: "
                    f"{', '.join(sorted(found)[:20]) or 'none'}",
                )
            if "_" in split and names and all(map(_PRESENCE.fullmatch, names)):
                raise InputError(
                    uri=lists[0].file.uri,
                    problem=f"{names[0]!r} says whether an image shows a class; "
                    "the list is not a split",
                )
            chosen.append(split)
            yield from lists

    def _read_maps(self, files: RootFiles) -> dict[str, Any]:
        """Finds the classes of the maps, and what the values of pixels mean: fields of the format.

        The classes are those of the key or the file that names them. Otherwise they are VOC's, if
        the first map has VOC's colours.
        """
        label_map = files.find(_LABEL_MAP)
        uri = first = ""
        if self.mask_classes:
            if label_map is not None:
                raise Problem(
                    ("mask_classes",), f"{_LABEL_MAP} names the classes, too; remove one of the two"
                )
            ids = ids_of_classes(self.mask_classes)
        elif label_map is not None:
            uri, ids = label_map.uri, _read_label_map(label_map)
        else:
            first, ids = _find_voc_classes(files)
        maps = FirstMaps()
        if first or not self.mask_values:
            maps = look_at_maps(
                ((path, file) for path, file in files.walk() if _is_class_map(path)),
                voc_colours=True,
            )
        if first and maps.in_gray:
            ids = {}
        reading = (
            given_values(self.mask_values)
            if self.mask_values
            else decide_mask_values(maps, declared=ids.values, classes=ids)
        )
        return {
            "_class_ids": ids,
            "_label_map": uri,
            "_first_mask": first,
            "_mask_reading": reading,
        }


def _read_label_map(file: ImageRef) -> dict[str, int]:
    """Reads `{name: id}` of the classes in a label map, without the background and the border."""
    names = [line.split(":")[0].strip() for _, line in text_lines(read_file(file), uri=file.uri)]
    if "" in names or len(set(names)) < len(names):
        raise InputError(
            uri=file.uri, problem="expected a class per line, `name:r,g,b::`, each once"
        )
    return {name: class_id for class_id, name in enumerate(names) if name not in _NO_CLASSES}


def _find_voc_classes(files: RootFiles) -> tuple[str, dict[str, int]]:
    """Finds the first map, by name, that can be read, and VOC's classes if it has VOC's colours.

    Without maps, the classes are VOC's.
    """
    voc = {name: class_id for class_id, name in enumerate(VOC_CLASSES, 1)}
    maps = {path: file for path, file in files.walk() if _is_class_map(path)}
    for path in sorted(maps):
        # A map that cannot be read rejects its image later.
        with contextlib.suppress(RejectedError, InputError):
            return path, voc if has_voc_colours(read_file(maps[path])) else {}
    return "", voc


def _is_class_map(path: str) -> bool:
    roles = (_MASK_FOLDERS.get(folder.casefold()) for folder in path.split("/")[:-1])
    return MaskRole.VOC_CLASS in roles and path.lower().endswith(".png") and not is_hidden(path)


def _join(key: str, *, is_id: bool = False) -> str:
    """Returns the text that joins the files of one image.

    It is the path without the extension and without folders such as `JPEGImages`.

    Lists name an image by an id (`is_id`), which may have no extension.
    """
    *folders, name = key.split("/")
    if not is_id and name.lower().endswith(".xml"):
        name = name[: -len(".xml")]
    # Some tools write `a.jpg.xml`.
    while is_image_name(name) and not name.startswith("."):
        name = name.rpartition(".")[0]
    kept = [
        folder
        for folder in folders
        if folder.casefold() not in _IMAGE_FOLDERS | _ANNOTATION_FOLDERS
        and folder.casefold() not in _MASK_FOLDERS
    ]
    return "/".join([*kept, name])


def _top(join: str) -> str:
    """Returns the top folder of a text that joins files, without folders like `JPEGImages`."""
    top, slash, _ = join.partition("/")
    return top if slash else ""


def _read_list(item: SplitList) -> list[tuple[int, str]]:
    return [
        (number, line[1:-1] if len(line) > 2 and line[0] == line[-1] == '"' else line)
        for number, line in item.lines()
    ]


def _edges(first: float, last: float) -> tuple[float, float]:
    """Returns the edges before a box's first pixel and after its last, counted from 1.

    Numbers in the wrong order keep it: whether they are exchanged depends on the image's size. Then
    the smaller one is that of the first pixel; below 1 it is no pixel's number, and stays as it is.
    """
    if first <= last:
        return first - 1, last
    return first, last - 1 if last >= 1 else last


def _pixels(sizes: Sequence[XmlElement], side: str) -> int:
    for size in sizes:
        value = size.one(side)
        if value is not None and value.text:
            return value.pixels()
    return 0


def _label(element: XmlElement) -> str:
    name = element.one("name")
    if name is None or not name.text:
        raise element.error("an <object> without <name>")
    return name.text


class _Shape(NamedTuple):
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


def _read_turned(element: XmlElement) -> _Shape:
    """Reads roLabelImg's turned rectangle: its centre, its sides and its angle in radians.

    The angle is clockwise as one sees the image: https://github.com/cgvict/roLabelImg.
    """
    x, y, width, height, angle = (_number(element, tag) for tag in ("cx", "cy", "w", "h", "angle"))
    box = x - width / 2, y - height / 2, x + width / 2, y + height / 2
    corners = turn_box(box, angle=angle)
    return _Shape(
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


def _attributes(element: XmlElement) -> dict[str, Value]:
    pose = element.one("pose")
    found: dict[str, Value] = {
        _DIFFICULT: _flag(element.one("difficult")),
        _TRUNCATED: _flag(element.one("truncated")),
        _VIEW: "" if pose is None or pose.text == _UNSPECIFIED else pose.text,
    }
    return {key: value for key, value in found.items() if value}


def _flag(value: XmlElement | None) -> int:
    """Reads 0 or 1; other texts that tools write, such as "Unspecified", count as 0."""
    if value is None:
        return 0
    if NUMBER.fullmatch(value.text):
        return int(float(value.text) > 0)
    return int(value.text.casefold() in ("true", "yes"))

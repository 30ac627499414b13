"""Pascal VOC: an XML file an image, lists of what is in which split, and segmentation PNGs.

The format: the development kits of http://host.robots.ox.ac.uk/pascal/VOC/.
"""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.schema import Name, PredefinedSplits
from shardbeam.transforms.core.errors import InputError, did_you_mean
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
    FeatureSpec,
)
from shardbeam.transforms.formats.annotation_file import text_lines
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.formats.names import is_hidden, is_image_name, normalize_key
from shardbeam.transforms.formats.root_files import RootFiles, read_file
from shardbeam.transforms.formats.split_lists import split_entry
from shardbeam.transforms.formats.voc_xml import VocObject, parse_voc_xml
from shardbeam.transforms.storage.base import Storage

if TYPE_CHECKING:
    from typing_extensions import Self

# The classes of the challenges, in the order of their ids: 1 to 20 in SegmentationClass.
VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)

_DEFAULT_SPLITS = ("train", "val", "test")
_LABEL_MAP = "labelmap.txt"
# What tools call the background and the border in a label map: no classes.
_NO_CLASSES = frozenset({"background", "ignored"})

# Folders by what is in them, in lower case. Their names do not matter for what belongs together.
_IMAGE_FOLDERS = frozenset({"jpegimages", "pngimages", "images", "image", "imgs", "img"})
_ANNOTATION_FOLDERS = frozenset({"annotations", "annotation", "xmls", "xml"})
_LIST_FOLDER = "imagesets"
_MASK_FOLDERS = {
    "segmentationclass": MaskRole.VOC_CLASS,
    "segmentationclasspng": MaskRole.VOC_CLASS,
    "segmentationobject": MaskRole.VOC_OBJECT,
    "segmentationobjectpng": MaskRole.VOC_OBJECT,
}
_OTHER_MASK_FOLDERS = ("segmentationclass", "segmentationobject")

# `aeroplane_train.txt`: a line says of an image whether it holds the class.
_PRESENCE = re.compile(r"\S+\s+(-1|0|1)")

_DIFFICULT = "image/object/difficult"
_TRUNCATED = "image/object/truncated"
_VIEW = "image/object/view"
_UNSPECIFIED = "Unspecified"


class SplitList(msgspec.Struct, frozen=True, kw_only=True):
    """A list of `ImageSets`.

    Attributes:
        split: The split.
        path: Its path below the root.
        file: Where it lies.
    """

    split: str
    path: str
    file: ImageRef


class VocLayout(msgspec.Struct, frozen=True, kw_only=True):
    """What was found below the root at launch.

    Attributes:
        splits: The splits, in order.
        lists: Their lists; several of one split where the root holds several datasets.
        classes: `(id, name)` of the classes in the maps; empty where no maps are asked for.
        label_map: The file that names them, if there is one.
    """

    splits: tuple[str, ...] = ()
    lists: tuple[SplitList, ...] = ()
    classes: tuple[tuple[int, str], ...] = ()
    label_map: ImageRef | None = None


class VocFormat(Format, frozen=True, kw_only=True):
    """Pascal VOC: `JPEGImages`, `Annotations`, `ImageSets`, `Segmentation*` below one folder.

    Files belong together by their names without extension, and by their folders but for those
    named like `JPEGImages` and `Annotations`. What the XML calls `filename` does not matter.

    Attributes:
        root: The folder that holds everything, at any depth (such as `VOCdevkit/VOC2012`).
        splits: Which lists of `ImageSets` are splits; by default train, val and test, those that
            name any image.
        image_set: Which folder of `ImageSets` the lists are in.
        coordinates: Whether boxes give the numbers of their first and last pixels, counted
            from 1, as VOC does; or edges, from 0, to be taken as they are.
        semantic: Whether images carry the maps of `SegmentationClass`.
        _masks: Whether they carry the maps of `SegmentationObject`.
        _layout: What `resolve` has found.
    """

    SUMMARY = "Pascal VOC XML: boxes, and segmentation PNGs"
    ROOTS = ("root",)
    CHOOSES_SPLITS = True
    lists_annotations = True

    root: Annotated[
        Location, named("folder of JPEGImages, Annotations and ImageSets", metavar="DIR")
    ]
    splits: PredefinedSplits | None = None
    image_set: Annotated[Name, named("folder of ImageSets that holds the lists")] = "Main"
    coordinates: Annotated[
        Literal["one_based", "as_given"], named("what the boxes' numbers mean")
    ] = "one_based"
    semantic: Annotated[bool, named("write the maps of SegmentationClass")] = False
    _masks: bool = False
    _layout: VocLayout = VocLayout()

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects, and the masks and maps that are asked for."""
        kinds = {Kind.DETECTION}
        if self._masks:
            kinds.add(Kind.INSTANCE_MASKS)
        if self.semantic:
            kinds.add(Kind.SEMANTIC)
        return frozenset(kinds)

    @functools.cached_property
    def _mask_roles(self) -> frozenset[MaskRole]:
        roles = {MaskRole.VOC_OBJECT: self._masks, MaskRole.VOC_CLASS: self.semantic}
        return frozenset(role for role, is_asked in roles.items() if is_asked)

    @functools.cached_property
    def _class_ids(self) -> Mapping[str, int]:
        return {name: class_id for class_id, name in self._layout.classes}

    def resolve(self) -> Self:
        """Finds the lists of the splits, and the classes of the maps; see the base class.

        Raises:
            InputError: There are no XML files, a list that is asked for is not there or no list
                of images, or a file cannot be read.
        """
        files = RootFiles(self.root)
        files.check()
        if not self.semantic and not _holds_xml(files):
            raise InputError(
                uri=self.root, problem="no .xml files found: expected Annotations/ below the root"
            )
        found = self._find_lists(files)
        names = {
            split: [name for item in found.get(split, ()) for _, name in _read_list(item)]
            for split in self.splits or _DEFAULT_SPLITS
        }
        splits = self.splits or [split for split in _DEFAULT_SPLITS if names[split]]
        for split in splits:
            self._check_list(split, found=found, names=names[split])
        label_map, classes = self._find_classes(files) if self.semantic else (None, ())
        layout = VocLayout(
            splits=tuple(splits),
            lists=tuple(item for split in splits for item in found[split]),
            classes=classes,
            label_map=label_map,
        )
        return msgspec.structs.replace(self, _layout=layout)

    def predefined_splits(self) -> Sequence[str]:
        """The splits that have a list."""
        return self._layout.splits

    def extra_features(self) -> Sequence[ExtraFeature]:
        """What VOC says about objects beyond their boxes, under TF Object Detection API's keys.

        Without a word of the annotator an object is neither difficult nor truncated.
        """
        return (
            ExtraFeature(FeatureSpec(_DIFFICULT, FeatureKind.INT64, repeated=True), True),
            ExtraFeature(FeatureSpec(_TRUNCATED, FeatureKind.INT64, repeated=True), True),
            ExtraFeature(
                FeatureSpec(_VIEW, FeatureKind.BYTES, repeated=True, role=FeatureRole.TEXT),
                per_object=True,
                default=_UNSPECIFIED,
            ),
        )

    def place(self, path: str, *, root: int) -> Place:
        """Tells images, XML files and masks by their folders and extensions; see the base class."""
        del root
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
                    return Place(role=Role.MASK, join=_join(key), mask=role)
                return Place(role=Role.OTHER)
        if key.lower().endswith(".xml"):
            return Place(role=Role.ANNOTATION, join=_join(key))
        if is_image_name(key):
            return Place(role=Role.IMAGE, key=key, join=_join(key))
        return as_image

    def annotation_files(self) -> Sequence[str]:
        """The lists of the splits, and the map of labels if there is one."""
        label_map = [] if self._layout.label_map is None else [self._layout.label_map.uri]
        return [*(item.file.uri for item in self._layout.lists), *label_map]

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Says of each image in a list that it is in its split; see the base class."""
        del storage
        yield from self._categories(self._class_ids)
        if file_index >= len(self._layout.lists):
            return
        item = self._layout.lists[file_index]
        folder = item.path[: -len(f"ImageSets/{self.image_set}/{item.split}.txt")]
        for line, name in _read_list(item):
            yield split_entry(
                _join(normalize_key(folder + name), is_id=True),
                split=item.split,
                path=item.path,
                line=line,
                file_index=file_index,
            )

    def read_listed(
        self, data: bytes, *, path: str, root: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses the XML file of one image; see the base class.

        Raises:
            InputError: It is no annotation file.
        """
        del root
        parsed = parse_voc_xml(data, uri=path)
        corrections: Counter[str] = Counter()
        objects = []
        for number, item in enumerate(parsed.objects, 1):
            if self._class_ids and item.name not in self._class_ids:
                corrections[Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED.value] += 1
            elif item.box is None:
                corrections[Correction.OBJECT_WITHOUT_BOX_DROPPED.value] += 1
            else:
                objects.append(self._object(item, box=item.box, number=number))
        if self._class_ids and not self.annotation_files():
            # Nothing else declares the classes that only maps hold.
            yield from self._categories(self._class_ids)
        else:
            yield from self._categories(dict.fromkeys(item.label for item in objects))
        annotations = ImageAnnotations(
            image_id="",
            width=parsed.width,
            height=parsed.height,
            objects=tuple(objects),
            corrections=corrections,
        )
        yield AnnotationEntry(
            key=_join(normalize_key(path)),
            annotations=encode_annotations(annotations),
            # Two files about one image are not to be added up.
            image_id=path,
        )

    def annotate_listed(self, key: str) -> ImageAnnotations | Exclusion | None:
        """Leaves out what is in a folder of annotations without being annotated; see the base."""
        folders = [folder.casefold() for folder in key.split("/")[:-1]]
        if is_hidden(key) or not is_image_name(key) or _IMAGE_FOLDERS.intersection(folders):
            return None
        return Exclusion.ANNOTATION_FOLDER if _ANNOTATION_FOLDERS.intersection(folders) else None

    def _categories(self, names: Mapping[str, object]) -> Iterator[Category]:
        for name in names:
            # The same origin for all, so that equal ones are one.
            yield Category(name=name, source_id=self._class_ids.get(name), origin=self.root)

    def _object(
        self, item: VocObject, *, box: tuple[float, float, float, float], number: int
    ) -> ObjectAnnotation:
        xmin, ymin, xmax, ymax = box
        first_pixel = 1.0 if self.coordinates == "one_based" else 0.0
        attributes: dict[str, Value] = {}
        if item.difficult:
            attributes[_DIFFICULT] = item.difficult
        if item.truncated:
            attributes[_TRUNCATED] = item.truncated
        if item.pose and item.pose != _UNSPECIFIED:
            attributes[_VIEW] = item.pose
        return ObjectAnnotation(
            label=item.name,
            bbox=(xmin - first_pixel, ymin - first_pixel, xmax, ymax),
            # The value of its pixels in SegmentationObject, whatever is left out before it.
            annotation_id=number,
            attributes=attributes,
        )

    def _find_lists(self, files: RootFiles) -> dict[str, list[SplitList]]:
        folder = f"ImageSets/{self.image_set}"
        listed = sorted(files.walk(folder), key=lambda item: item[0])
        if not listed:
            # The root may hold VOCdevkit, or several years.
            listed = sorted(
                (item for item in files.walk() if f"/{folder}/" in f"/{item[0]}"),
                key=lambda item: item[0],
            )
        found: dict[str, list[SplitList]] = {}
        for path, file in listed:
            head, _, name = path.rpartition("/")
            if f"/{head}".endswith(f"/{folder}") and name.endswith(".txt") and not is_hidden(path):
                split = name.removesuffix(".txt")
                item = SplitList(split=split, path=path, file=file)
                found.setdefault(split, []).append(item)
        return found

    def _check_list(
        self, split: str, *, found: Mapping[str, Sequence[SplitList]], names: Sequence[str]
    ) -> None:
        if split not in found:
            known = ", ".join(sorted(found)[:20]) or "none"
            raise InputError(
                uri=self.root,
                problem=f"there is no list ImageSets/{self.image_set}/{split}.txt"
                f"{did_you_mean(split, known=found)}; found: {known}",
            )
        if "_" in split and names and all(map(_PRESENCE.fullmatch, names)):
            raise InputError(
                uri=found[split][0].file.uri,
                problem=f"{names[0]!r} says whether an image holds a class; the list is no split",
            )

    def _find_classes(
        self, files: RootFiles
    ) -> tuple[ImageRef | None, tuple[tuple[int, str], ...]]:
        label_map = files.find(_LABEL_MAP)
        if label_map is None:
            return None, tuple(enumerate(VOC_CLASSES, 1))
        names = [
            line.split(":")[0].strip()
            for _, line in text_lines(read_file(label_map), uri=label_map.uri)
        ]
        if "" in names or len(set(names)) < len(names):
            raise InputError(
                uri=label_map.uri, problem="expected a class a line, `name:r,g,b::`, each once"
            )
        return label_map, tuple(
            (class_id, name) for class_id, name in enumerate(names) if name not in _NO_CLASSES
        )


def _join(key: str, *, is_id: bool = False) -> str:
    """What the files of one image have in common: the path without extensions and role folders.

    Args:
        key: A file's path, or what a list calls an image.
        is_id: Whether it is the latter, which may have no extension.
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


def _holds_xml(files: RootFiles) -> bool:
    return any(
        path.lower().endswith(".xml") and not is_hidden(path)
        for folder in ("Annotations", "")
        for path, _ in files.walk(folder)
    )


def _read_list(item: SplitList) -> list[tuple[int, str]]:
    """Reads a list: `(line number, what it calls an image)` of each line that names one."""
    return [
        (number, line[1:-1] if len(line) > 2 and line[0] == line[-1] == '"' else line)
        for number, line in text_lines(read_file(item.file), uri=item.file.uri)
    ]

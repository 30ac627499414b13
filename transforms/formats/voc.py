"""Pascal VOC: an XML file an image, lists of what is in which split, and segmentation PNGs.

The format: the development kits of http://host.robots.ox.ac.uk/pascal/VOC/.
"""

from __future__ import annotations

import codecs
import functools
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Literal, NoReturn
from xml.parsers import expat

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.nearest import did_you_mean
from shardbeam.configs.schema import Name, PredefinedSplits
from shardbeam.transforms.core.errors import InputError
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
from shardbeam.transforms.formats.annotation_file import foreign_content, text_lines
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.formats.names import is_hidden, is_image_name, normalize_key
from shardbeam.transforms.formats.root_files import RootFiles, read_file, split_entry
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

_MAX_SIDE_PX = 2**31 - 1
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,4})?")
_YES_NO = {"true": 1, "yes": 1, "false": 0, "no": 0}

_DECLARATION = re.compile(rb"<\?xml[^>]{0,100}?encoding\s*=\s*[\"']([A-Za-z0-9._-]{1,40})[\"']")
# Encodings that tools on East Asian systems declare and Expat does not know.
_RECODED = frozenset(
    codecs.lookup(name).name
    for name in (
        *("gb2312", "gbk", "gb18030", "big5", "cp950"),
        *("shift_jis", "cp932", "euc_jp", "euc_kr", "cp949"),
    )
)

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
# Elements below `annotation/object/bndbox/xmin` say nothing that is read.
_MAX_DEPTH = 4


class VocObject(msgspec.Struct, frozen=True, kw_only=True):
    """An `object`, as it is there.

    Attributes:
        name: Its class, each run of white space made one space.
        box: `(xmin, ymin, xmax, ymax)` as written; None where there is no `bndbox`.
        pose: The view; empty where it is not said.
        truncated: 0 or 1; None where it is not said.
        difficult: 0 or 1; None where it is not said.
    """

    name: str
    box: tuple[float, float, float, float] | None
    pose: str = ""
    truncated: int | None = None
    difficult: int | None = None


class VocAnnotation(msgspec.Struct, frozen=True, kw_only=True):
    """An `annotation`.

    Attributes:
        width: Width of the image in pixels; 0 where it is not said.
        height: Height of the image in pixels; 0 where it is not said.
        objects: Its objects, in their order.
    """

    width: int
    height: int
    objects: tuple[VocObject, ...]


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


def parse_voc_xml(data: bytes, *, uri: str) -> VocAnnotation:
    """Parses an annotation file.

    Nothing that the file refers to is read: a file that declares entities is refused.

    Args:
        data: Its content.
        uri: The file, for errors.

    Raises:
        InputError: It is not well-formed XML, not an `annotation`, declares or uses entities,
            or a value that is needed is missing, no number, or given twice.
    """
    if not data.strip():
        raise InputError(uri=uri, problem="the file is empty")
    data, encoding = _recode(data, uri=uri)
    root = _parse(data, encoding=encoding, uri=uri)
    if root.tag != "annotation":
        raise root.error(f"expected <annotation>, found <{root.tag[:40]}>")
    sizes = root.all("size")
    return VocAnnotation(
        width=_pixels(sizes, "width"),
        height=_pixels(sizes, "height"),
        objects=tuple(map(_read_object, root.all("object"))),
    )


def _recode(data: bytes, *, uri: str) -> tuple[bytes, str | None]:
    """Gives the content in an encoding that Expat reads, and its name where it is not declared."""
    declared = _DECLARATION.match(data)
    if declared is None:
        return data, None
    try:
        name = codecs.lookup(declared[1].decode("ascii")).name
    except LookupError:
        return data, None
    if name not in _RECODED:
        return data, None
    try:
        return data.decode(name).encode(), "utf-8"
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InputError(
            uri=uri, place=f"line {line}", problem=f"expected {name} text, as the file declares"
        ) from error


class _Element:
    """An element of the file, and where it begins."""

    def __init__(self, tag: str, *, line: int, uri: str) -> None:
        self.tag = tag
        self.line = line
        self.uri = uri
        self.children: list[_Element] = []
        self.texts: list[str] = []

    @property
    def text(self) -> str:
        # Line breaks within a value are the file's layout.
        return " ".join("".join(self.texts).split())

    def all(self, tag: str) -> list[_Element]:
        return [child for child in self.children if child.tag == tag]

    def one(self, tag: str) -> _Element | None:
        """The child of that name; None where there is none."""
        found = self.all(tag)
        if len(found) > 1:
            raise found[1].error(f"<{tag}> is given twice")
        return found[0] if found else None

    def number(self) -> float:
        number = float(self.text) if _NUMBER.fullmatch(self.text) else math.nan
        if not math.isfinite(number):
            raise self.error(f"<{self.tag}>: expected a number, got {self.text[:40]!r}")
        return number

    def error(self, problem: str) -> InputError:
        return InputError(uri=self.uri, place=f"line {self.line}", problem=problem)


def _parse(data: bytes, *, encoding: str | None, uri: str) -> _Element:
    """Parses the file into elements, as deep as values stand.

    Raises:
        InputError: It is not well-formed XML, or has entities.
    """
    parser = expat.ParserCreate(encoding)
    parser.buffer_text = True
    top = _Element("", line=1, uri=uri)
    path = [top]

    def start(tag: str, attributes: Mapping[str, str]) -> None:
        del attributes
        element = _Element(tag, line=parser.CurrentLineNumber, uri=uri)
        if len(path) <= _MAX_DEPTH:
            path[-1].children.append(element)
        path.append(element)

    def end(tag: str) -> None:
        del tag
        path.pop()

    def add_text(text: str) -> None:
        path[-1].texts.append(text)

    def refuse_entity(*_: object) -> NoReturn:
        raise InputError(
            uri=uri,
            place=f"line {parser.CurrentLineNumber}",
            problem="entities (<!ENTITY ...>, &name;) are not read; write the text itself",
        )

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = add_text
    # No entity is expanded or fetched: entities can make a small file fill the memory, or name
    # files of the machine.
    parser.EntityDeclHandler = refuse_entity
    parser.SkippedEntityHandler = refuse_entity
    try:
        parser.Parse(data, True)
    except expat.ExpatError as error:
        foreign = None if data.lstrip().startswith(b"<") else foreign_content(data)
        if foreign is not None:
            raise InputError(uri=uri, problem=foreign) from error
        raise InputError(
            uri=uri,
            place=f"line {error.lineno}, column {error.offset + 1}",
            problem=f"the XML is broken: {expat.ErrorString(error.code)}",
        ) from error
    except (ValueError, LookupError) as error:
        # An encoding of several bytes a character that Expat does not know.
        raise InputError(uri=uri, place="line 1", problem=f"the XML's encoding: {error}") from error
    return top.children[0]


def _pixels(sizes: Sequence[_Element], side: str) -> int:
    for size in sizes:
        value = size.one(side)
        if value is not None and value.text:
            number = value.number()
            if not 0 <= number <= _MAX_SIDE_PX or number != int(number):
                raise value.error(f"<{side}>: expected pixels, got {value.text[:40]!r}")
            return int(number)
    return 0


def _read_object(element: _Element) -> VocObject:
    name, pose, box = (element.one(tag) for tag in ("name", "pose", "bndbox"))
    if name is None or not name.text:
        raise element.error("an <object> without <name>")
    corners = []
    if box is not None:
        for tag in _CORNERS:
            corner = box.one(tag)
            if corner is None:
                raise element.error(f"an <object> whose <bndbox> has no <{tag}>")
            corners.append(corner.number())
    return VocObject(
        name=name.text,
        box=(corners[0], corners[1], corners[2], corners[3]) if corners else None,
        pose="" if pose is None else pose.text,
        truncated=_flag(element.one("truncated")),
        difficult=_flag(element.one("difficult")),
    )


def _flag(value: _Element | None) -> int | None:
    """Reads 0 or 1; whatever else tools write there ("Unspecified") says nothing."""
    if value is None:
        return None
    if _NUMBER.fullmatch(value.text):
        number = float(value.text)
        return None if number < 0 else int(number > 0)
    return _YES_NO.get(value.text.casefold())

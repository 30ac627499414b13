"""Images, and for each a mask of the same name, whose pixels are classes."""

from __future__ import annotations

import functools
import heapq
import itertools
import posixpath
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated, NamedTuple

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import BACKGROUND_NAMES
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageRef,
    MaskRole,
    MaskValues,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.annotation_file import (
    decode_json,
    decode_text,
    repeated_key,
    split_lines,
    text_lines,
)
from shardbeam.transforms.formats.base import Kind, Place, Role
from shardbeam.transforms.formats.mask_doubts import (
    ask_about_twins,
    describe_classes,
    doubt_masks,
)
from shardbeam.transforms.formats.mask_values import (
    MaskClassesKey,
    MaskReading,
    MaskValuesKey,
    check_mask_keys,
    decide_mask_values,
    first_maps,
    given_values,
    ids_of_classes,
    read_first_maps,
    show_colours,
)
from shardbeam.transforms.formats.names import (
    is_hidden,
    is_image_name,
    is_split_name,
    listing_exclusion,
    normalize_key,
)
from shardbeam.transforms.formats.parsing.lines import split_cells
from shardbeam.transforms.formats.parsing.root_files import RootFiles, read_file, relative_path
from shardbeam.transforms.formats.parsing.table_columns import CellError
from shardbeam.transforms.formats.recognition import MASKS, Folder, Recognized
from shardbeam.transforms.formats.sibling_folders import folder_tree
from shardbeam.transforms.formats.split_folders import TopFolderFormat, sort_tops, top_folder
from shardbeam.transforms.storage.base import Storage

# Reads files that name the classes of masks, by the values or by the colours of pixels.

# Larger ids do not fit into a map of 8 bits, in which 255 means: ignore this pixel.
_MAX_ID = 254
_VALUES = "_classes.csv"
_COLOURS = ("class_dict.csv", "class_dict_seg.csv", "labelmap.csv")
_IDS = "id2label.json"
# CVAT's and Pascal VOC's file has lines `name:r,g,b:parts:actions`, and CamVid's `r g b name`.
LABEL_MAP, _LABEL_COLOURS = "labelmap.txt", "label_colors.txt"
_NAMES = frozenset({_VALUES, *_COLOURS, _IDS, LABEL_MAP, _LABEL_COLOURS})
_NUMBER = re.compile(r"[0-9]{1,3}", re.ASCII)
_TABLE_EXPECTED = "expected a header `name,r,g,b` or `Pixel Value, Class`, and such rows"
# The name that tools give the border between objects in a label map.
IGNORED = "ignored"
_decoder = JsonDecoder(dict[str, str])


class _Row(NamedTuple):
    """A class of a file: its place there, its name, its id, and the channels of its colour."""

    place: str
    name: str
    class_id: str
    channels: Sequence[str] = ()


class ClassTable(NamedTuple):
    """The classes of masks.

    Attributes:
        ids: `{name: id}`.
        colours: `(R << 16 | G << 8 | B, id)` in ascending order, with None for pixels to ignore;
            empty if the file names no colours.
        path: The path of the file that names the classes, below its root.
    """

    ids: Mapping[str, int] = {}
    colours: tuple[tuple[int, int | None], ...] = ()
    path: str = ""


def is_class_table(path: str) -> bool:
    """Whether a file has the name of one that names classes; it may still be another table."""
    return path.rpartition("/")[2].casefold() in _NAMES


def read_class_table(path: str, *, file: ImageRef) -> ClassTable | None:
    """Reads the classes of masks; returns None if the file is a table of images.

    Raises:
        InputError: The file cannot be read, or a class or a colour is there twice.
    """
    ids: dict[str, int] = {}
    colours: dict[int, int | None] = {}
    rows = _read_rows(path.rpartition("/")[2].casefold(), read_file(file), uri=file.uri)
    if rows is None:
        return None
    for row in rows:
        numbers = [int(text) for text in (row.class_id, *row.channels) if _NUMBER.fullmatch(text)]
        problem = ""
        is_whole = len(numbers) == 1 + len(row.channels) and len(row.channels) in (0, 3)
        if not is_whole or max(numbers[1:], default=0) > 255:
            problem = f"expected numbers, got {', '.join((row.class_id, *row.channels))[:80]!r}"
        elif numbers[0] > _MAX_ID:
            problem = f"expected an id from 0 to {_MAX_ID}, got {numbers[0]}"
        elif not row.name or row.name in ids or numbers[0] in ids.values():
            problem = f"the class {row.name!r} has no name, or its name or id is there twice"
        colour = sum(each << shift for each, shift in zip(numbers[1:], (16, 8, 0), strict=False))
        if row.channels and colour in colours:
            problem = problem or f"another class has the colour #{colour:06x}, too"
        if problem:
            raise InputError(uri=file.uri, place=row.place, problem=problem)
        ids[row.name] = numbers[0]
        if row.channels:
            colours[colour] = None if row.name == IGNORED else numbers[0]
    if not ids:
        raise InputError(uri=file.uri, problem="the file names no classes")
    ids.pop(IGNORED, None)
    return ClassTable(ids, tuple(sorted(colours.items(), key=lambda each: each[0])), path)


def _read_rows(name: str, data: bytes, *, uri: str) -> Iterator[_Row] | None:
    if name == _IDS:
        if (twice := repeated_key(data)) is not None:
            raise InputError(uri=uri, place=f"$.{twice}", problem="the key is there twice")
        found = decode_json(data, decoder=_decoder, uri=uri)
        return (_Row(f"$.{key}", label, key) for key, label in found.items())
    if name == LABEL_MAP:
        return _read_label_map(data, uri=uri)
    if name == _LABEL_COLOURS:
        lines = ((number, line.split(None, 3)) for number, line in text_lines(data, uri=uri))
        return (
            _Row(f"line {number}", "".join(cells[3:]), str(index), cells[:3])
            for index, (number, cells) in enumerate(lines)
        )
    return _read_csv(name, data, uri=uri)


def _read_label_map(data: bytes, *, uri: str) -> Iterator[_Row]:
    for index, (number, line) in enumerate(text_lines(data, uri=uri)):
        class_name, _, rest = line.partition(":")
        colour = rest.partition(":")[0].strip()
        channels = [each.strip() for each in colour.split(",")] if colour else []
        yield _Row(f"line {number}", class_name.strip(), str(index), channels)


def _read_csv(name: str, data: bytes, *, uri: str) -> Iterator[_Row] | None:
    rows: list[tuple[int, list[str]]] = []
    for number, line in enumerate(split_lines(decode_text(data, uri=uri)), 1):
        try:
            cells = [cell.strip() for cell in split_cells(line)]
        except CellError as error:
            raise InputError(uri=uri, place=f"line {number}", problem=str(error)) from error
        if any(cells):
            rows.append((number, cells))
    header = [cell.casefold() for cell in rows[0][1]] if rows else []
    if header[:4] == ["name", "r", "g", "b"]:
        return (
            _Row(f"line {number}", cells[0], str(index), (*cells[1:4], *[""] * (4 - len(cells))))
            for index, (number, cells) in enumerate(rows[1:])
        )
    if header[:2] == ["pixel value", "class"]:
        return (_Row(f"line {number}", ",".join(cells[1:]), cells[0]) for number, cells in rows[1:])
    # A table of images has this name, too, and a column for each class.
    if name == _VALUES:
        return None
    raise InputError(uri=uri, place="line 1", problem=_TABLE_EXPECTED)


# Finds out how a source names its masks: which files are masks, and which image each belongs to.
#
# Tools use folders (`images/a.jpg`, `masks/a.png`, also `train_masks/a.png`), endings or beginnings
# of names (`a.jpg`, `a_mask.png`), or both.

_IMAGE_WORDS = frozenset(
    {"image", "images", "img", "imgs", "jpegimages", "pngimages", "leftimg8bit", "input", "inputs"}
)
_VOC_FOLDERS = frozenset({"segmentationclass", "segmentationclasspng"})
_MASK_WORDS = _VOC_FOLDERS | {
    *("mask", "masks", "label", "labels", "annotation", "annotations", "annot", "ann", "target"),
    *("targets", "truth", "groundtruth", "gt", "gtfine", "gtcoarse", "segmentation", "semantic"),
    "trimaps",
}
# Words that may also name a class: `init` looks at the pictures, too.
_MORE_MASK_WORDS = _MASK_WORDS | {
    *("seg", "segs", "segmentations", "segmentationmask", "segmentationmasks", "gts", "lbl"),
    *("segmentationclassaug", "segmentationclassraw", "stuffthingmaps", "matte", "alpha"),
}
# Words that say nothing beside one of the others: `ann_dir`, `ground_truth`, `png_masks`.
_FILLERS = frozenset({"dir", "png", "ground", "binary"})
_MORE_FILLERS = _FILLERS | {"sem", "rgb"}
_OBJECT_FOLDERS = frozenset({"segmentationobject", "segmentationobjectpng"})
_WORD = re.compile(r"[^\W_]+")
# SegNet's names of folders have no mark between their words.
_JOINED = re.compile(r"\A(train|val|test)(?=(annot|masks?|labels?)\Z)", re.IGNORECASE)
# Other pictures that Cityscapes has beside its masks.
_BESIDE_LABEL_IDS = ("_color", "_instanceIds", "_labelTrainIds", "_instanceTrainIds")


class Naming(NamedTuple):
    """How names of masks differ from those of their images.

    Attributes:
        image_end: Ending of an image's name without extension where its mask's has `mask_end`.
        mask_end: The ending that `image_end` replaces.
        image_start: Beginning of an image's name where its mask's name has `mask_start`.
        mask_start: The beginning that `image_start` replaces.
        more_words: Whether folders that are named `seg`, `lbl` or `alpha` hold masks, too.
        image_folder: A folder beside those of masks that holds their images; empty if its name is
            a usual one, such as `images`.
        goes_on: Whether names of masks may go on behind `mask_end`, as in `a_mask_1.png`: an image
            has several masks.
    """

    image_end: str = ""
    mask_end: str = ""
    image_start: str = ""
    mask_start: str = ""
    more_words: bool = False
    image_folder: str = ""
    goes_on: bool = False

    def is_mask(self, path: str) -> bool:
        """Whether a picture is a mask, by its folders or its name."""
        folders, stem = _split(path)
        return any(self._read(each)[0] for each in folders) or self._rename(stem) != stem

    def join_image(self, path: str) -> str:
        """Returns an image's path without its extension and without folders such as `images`."""
        folders, stem = _split(path)
        read = ((folder, *self._read(folder)) for folder in folders)
        return _join((folder if is_of_masks else rest for folder, is_of_masks, rest in read), stem)

    def join_mask(self, path: str) -> str:
        """Returns the text that joins a mask to its image; empty if it is another picture.

        Folders such as `masks` are left out, too.
        """
        folders, stem = _split(path)
        if self.mask_end.endswith("_labelIds") and stem.endswith(_BESIDE_LABEL_IDS):
            return ""
        return _join((self._read(folder)[1] for folder in folders), self._rename(stem))

    def may_rename(self, stem: str) -> bool:
        """Whether a name without extension begins and ends like those of masks."""
        stem = self._split_rest(stem)[0]
        return stem.startswith(self.mask_start) and stem.endswith(self.mask_end)

    def _read(self, folder: str) -> tuple[bool, str]:
        if self.image_folder and folder == self.image_folder:
            return False, ""
        return _read_folder(folder, more_words=self.more_words)

    def split_number(self, path: str) -> tuple[str, str]:
        """Splits the number behind the ending off a mask's path; it is empty if there is none.

        Masks of an image that only differ in it are joined.
        """
        folders, stem = _split(path)
        start, rest = self._split_rest(stem)
        if not _NUMBERED.fullmatch(rest):
            return path, ""
        *_, name = normalize_key(path).split("/")
        return _join(folders, f"{start}{name.removeprefix(stem)}"), rest

    def _split_rest(self, stem: str) -> tuple[str, str]:
        """Splits a name without extension behind the ending of masks, if names may go on there."""
        if not self.goes_on:
            return stem, ""
        if self.mask_end:
            start, end, rest = stem.rpartition(self.mask_end)
            goes_on = rest.isdigit() or not rest[:1].isalnum()
            return (f"{start}{end}", rest) if start and end and goes_on else (stem, "")
        # Only a number shows where the image's name ends.
        number = _NUMBER_BEHIND.search(stem)
        return (stem[: number.start()], number.group()) if number else (stem, "")

    def _rename(self, stem: str) -> str:
        stem = self._split_rest(stem)[0]
        core = stem.removeprefix(self.mask_start).removesuffix(self.mask_end)
        if not core or f"{self.mask_start}{core}{self.mask_end}" != stem:
            return stem
        return f"{self.image_start}{core}{self.image_end}"


# The most usual ways first.
_ENDINGS = (
    *(("", ""), ("", "_mask"), ("", "_L"), ("", "_segmentation"), ("", "_label"), ("", "_seg")),
    *(("", "_gt"), ("", "_labelIds"), ("", "-mask"), ("_sat", "_mask")),
    *(("_leftImg8bit", "_gtFine_labelIds"), ("_leftImg8bit", "_gtCoarse_labelIds")),
)
_BEGINNINGS = (("", "mask_"), ("image_", "mask_"), ("image_", "label_"), ("image_", "gt_"))
_NAMINGS = [
    *(Naming(*each) for each in _ENDINGS),
    *(Naming(image_start=image, mask_start=mask) for image, mask in _BEGINNINGS),
]
_MARK = re.compile(r"[\W_]")
# The number of a mask of several behind its ending, and behind the name of its image.
_NUMBERED = re.compile(r"[ _.-]?[0-9]{1,4}", re.ASCII)
_NUMBER_OF_ENDING = re.compile(r"[ _.-]?[0-9]{1,4}\Z", re.ASCII)
_NUMBER_BEHIND = re.compile(r"(?<=.)[ _-][0-9]{1,4}\Z", re.ASCII)
# Masks whose names may show another ending.
_FIRST = 3


class Pairs(NamedTuple):
    """The images and masks that belong together by a naming.

    Attributes:
        naming: The naming.
        joins: `{text that joins: paths of the masks}` of the images with masks.
    """

    naming: Naming
    joins: dict[str, list[str]]


def find_pairs(paths: Sequence[str], *, masks: Iterable[str] | None = None) -> Pairs:
    """Finds the naming by which most images have a mask; none may have one.

    Args:
        paths: All images, or all images and masks if these have one root.
        masks: The masks, if they have another root.
    """
    listed = [path for path in paths if not holds_objects(path)]
    given = None if masks is None else [*masks]
    best = _best_pairs(listed, given, folders=Naming())
    if best.joins or given is not None:
        return best
    for folders in _other_folders(listed):
        pairs = _best_pairs(listed, None, folders=folders)
        if len(pairs.joins) > len(best.joins):
            best = pairs
    return best


def _best_pairs(listed: Sequence[str], given: Sequence[str] | None, *, folders: Naming) -> Pairs:
    """Finds the ending or beginning with the most pairs, where `folders` says which hold masks."""
    stems = [_split(path)[1] for path in (listed if given is None else given)]
    # Each naming takes a while for a million images, and none pairs more than this.
    most = len(listed) // 2 if given is None else min(len(listed), len(given))
    best = Pairs(folders, {})
    usual = (_with_folders(naming, folders) for naming in _NAMINGS)
    for naming in itertools.chain(usual, _other_endings(listed, given, folders=folders)):
        if not any(map(naming.may_rename, stems)):
            # It pairs the same files as the naming by folders alone, which is the first.
            continue
        pairs = _pair(listed, given, naming=naming)
        if len(pairs.joins) > len(best.joins):
            best = pairs
        if len(best.joins) == most:
            break
    return _with_more_masks(best, listed, given)


def _with_more_masks(best: Pairs, listed: Sequence[str], given: Sequence[str] | None) -> Pairs:
    """Lets names of masks go on behind their ending, if that gives images more masks.

    No mask that has an image may get another one: `a_1.png` belongs to an image `a_1.jpg`.
    """
    used = sum(map(len, best.joins.values()))
    if used == (len(listed) - len(best.joins) if given is None else len(given)):
        return best
    endings = {naming.mask_end for naming in _NAMINGS}
    # All names may have a number: `a_mask_1.png`, `a_mask_2.png`.
    end = _NUMBER_OF_ENDING.sub("", best.naming.mask_end)
    namings = [best.naming._replace(mask_end=end) if end in endings else best.naming]
    if not best.joins:
        paths = listed if given is None else given
        namings = [
            _with_folders(naming, best.naming)
            for naming in _NAMINGS
            if naming.mask_end and any(naming.mask_end in path for path in paths)
        ]
    for naming in (each._replace(goes_on=True) for each in namings):
        pairs = _pair(listed, given, naming=naming)
        is_kept = all(
            {*masks} <= {*pairs.joins.get(join, ())} for join, masks in best.joins.items()
        )
        if is_kept and sum(map(len, pairs.joins.values())) > sum(map(len, best.joins.values())):
            best = pairs
    return best


def _with_folders(naming: Naming, folders: Naming) -> Naming:
    return naming._replace(more_words=folders.more_words, image_folder=folders.image_folder)


def _other_folders(listed: Sequence[str]) -> Iterator[Naming]:
    """Yields the ways in which folders may hold images and masks, beside the usual ones.

    One folder of another name, which lies beside folders of masks, may hold their images.
    """
    below = folder_tree(map(normalize_key, listed))
    for more_words in (False, True):
        read = functools.partial(_read_folder, more_words=more_words)
        holding = [names for names in below.values() if any(read(name)[0] for name in names)]
        folders = Naming(more_words=more_words)
        # Each naming takes a while for a million images.
        if holding and more_words:
            yield folders
        beside = {
            name
            for name in itertools.chain.from_iterable(holding)
            if read(name) == (False, name) and not is_split_name(name)
        }
        if len(beside) == 1:
            yield folders._replace(image_folder=beside.pop())


def _pair(listed: Sequence[str], given: Sequence[str] | None, *, naming: Naming) -> Pairs:
    images, masks = _sort(listed, given, naming=naming)
    joins: defaultdict[str, list[str]] = defaultdict(list)
    for path in masks:
        joins[naming.join_mask(path)].append(path)
    named = {naming.join_image(path) for path in images} if joins else set()
    return Pairs(naming, {join: paths for join, paths in joins.items() if join in named})


def _sort(
    listed: Sequence[str], given: Sequence[str] | None, *, naming: Naming
) -> tuple[Sequence[str], Sequence[str]]:
    """Returns the images and the masks."""
    if given is not None:
        return listed, given
    masks = {path for path in listed if naming.is_mask(path)}
    return [path for path in listed if path not in masks], sorted(masks)


def _other_endings(
    listed: Sequence[str], given: Sequence[str] | None, *, folders: Naming
) -> Iterator[Naming]:
    """Yields the endings by which the first masks in folders of their own differ from images."""
    images, masks = _sort(listed, given, naming=folders)
    named = {folders.join_image(path) for path in images}
    for join in map(folders.join_mask, heapq.nsmallest(_FIRST, masks)):
        starts = [mark.start() for mark in _MARK.finditer(join) if join[: mark.start()] in named]
        if starts:
            yield folders._replace(mask_end=join[starts[-1] :])


def is_voc_folder(path: str) -> bool:
    """Whether a mask is in a folder in which Pascal VOC's colours are usual."""
    return any(folder.casefold() in _VOC_FOLDERS for folder in path.split("/")[:-1])


def holds_objects(path: str) -> bool:
    """Whether a picture is one of Pascal VOC's masks of objects."""
    return any(folder.casefold() in _OBJECT_FOLDERS for folder in path.split("/")[:-1])


def _split(path: str) -> tuple[list[str], str]:
    *folders, name = normalize_key(path).split("/")
    # Some tools write `a.jpg.png`.
    while is_image_name(name) and not name.startswith("."):
        name = name.rpartition(".")[0]
    return folders, name


def _join(folders: Iterable[str], stem: str) -> str:
    return "/".join([*filter(None, folders), stem])


@functools.lru_cache(maxsize=4096)
def _read_folder(name: str, *, more_words: bool = False) -> tuple[bool, str]:
    """Returns whether a folder is one of masks, and its name without words that say what it holds.

    Beside such words only splits and numbers may stand: `train_masks`, but not `with_mask`.
    """
    words = _WORD.findall(_JOINED.sub(r"\1_", name))
    of_masks = _MORE_MASK_WORDS if more_words else _MASK_WORDS
    fillers = _MORE_FILLERS if more_words else _FILLERS
    known = _IMAGE_WORDS | of_masks
    rest = [word for word in words if word.casefold() not in known | fillers]
    is_named = any(word.casefold() in known for word in words)
    if not is_named or not all(is_split_name(word) or word.isdigit() for word in rest):
        return False, name
    return any(word.casefold() in of_masks for word in words), "_".join(rest)


def _joined_with(path: str, *, joins: Mapping[str, Sequence[str]], naming: Naming) -> list[str]:
    """Returns the masks of an image that are joined with a mask, which is among them."""
    first, _ = naming.split_number(path)
    masks = joins.get(naming.join_mask(path), [path])
    return sorted(mask for mask in masks if naming.split_number(mask)[0] == first)


def _describe_other_endings(
    masks: Iterable[str], *, joins: Mapping[str, Sequence[str]], naming: Naming
) -> str:
    """Says that most images have other masks, whose names end otherwise; empty if they do not."""
    others: dict[str, str] = {}
    for path in sorted(masks):
        join = naming.join_mask(path)
        starts = (join[: mark.start()] for mark in _MARK.finditer(join) if join not in joins)
        others |= {start: path for start in starts if start in joins}
    if 2 * len(others) <= len(joins):
        return ""
    join, path = min(others.items())
    return (
        f"most images have several masks, such as {min(joins[join])} and {path}, and only those of "
        "one ending are read: move the others away, or put each kind into a folder of its own and "
        "name it in semantic_masks"
    )


_EXPECTED = (
    "expected images/ and masks/, or a.jpg beside a_mask.png, or the folder of the masks in "
    "semantic_masks"
)


class MasksFormat(TopFolderFormat, frozen=True, kw_only=True):
    """Images and masks of classes, matched by their names.

    Attributes:
        images: Root folder of the images, and of the masks if `semantic_masks` is None.
        semantic_masks: A folder of PNGs whose pixels are classes, named like the images.
        mask_classes: `{class id: name}` of the classes of maps.
        mask_values: `{value of a pixel: class id, or ignore}`, if values are no class ids.
        _naming: How masks are named.
        _table: The classes, and the file that names them.
        _table_uri: That file, or the archive that holds it; empty if no file names the classes.
        _reading: How the masks' pixels are read.
    """

    SUMMARY = "images and masks of classes, matched by their names"
    kinds = frozenset({Kind.SEMANTIC})
    ROOTS = ("images", "semantic_masks")
    # Perhaps nobody has drawn their masks yet.
    UNANNOTATED = "drop"

    images: Annotated[Location, named("root folder of the images and masks", metavar="DIR")]
    semantic_masks: (
        Annotated[Location, named("folder of PNGs whose pixels are class ids", metavar="DIR")]
        | None
    ) = None
    mask_classes: MaskClassesKey = {}
    mask_values: MaskValuesKey = {}
    _naming: Naming = Naming()
    _table: ClassTable = ClassTable()
    _table_uri: str = ""
    _reading: MaskReading = MaskReading()

    def __post_init__(self) -> None:
        check_mask_keys(classes=self.mask_classes, values=self.mask_values, key="")

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes masks of which at least half have an image.

        Where names alone do not show it, the first pictures do, or the problem asks.
        """
        zips = {folder.zip_of(path) for path in folder.images}
        if len(zips) != 1:
            return None
        root = zips.pop()
        paths = [path.removeprefix(f"{root}/" if root else "") for path in folder.images]
        naming, joins = find_pairs(paths)
        masks = [path for path in paths if naming.is_mask(path) and naming.join_mask(path)]
        if not joins or 2 * len(joins) < len({naming.split_number(path)[0] for path in masks}):
            return ask_about_twins(folder)
        images = {naming.join_image(path): path for path in paths if not naming.is_mask(path)}
        pairs = [
            (posixpath.join(root, images[join]), posixpath.join(root, min(joins[join])))
            for join in sorted(joins)
        ]
        doubt: str | None = ""
        if naming.more_words or naming.image_folder:
            doubt = doubt_masks(
                pairs,
                folder=folder,
                are_side_by_side=bool(naming.image_folder),
                needs_size=naming.more_words,
            )
        if doubt is None:
            return None
        notes = []
        numbered = [path for path in masks if naming.split_number(path)[1]]
        if numbered:
            notes.append(
                "masks whose names differ by a number are of one image, and are joined, such as "
                f"{' and '.join(_joined_with(min(numbered), joins=joins, naming=naming)[:2])}"
            )
        if any("/ImageSets/" in f"/{path}" for path in folder.named(".txt")):
            notes.append("not read: the lists in ImageSets; `voc` with `semantic: true` reads them")
        notes += describe_classes([naming.join_image(image) for image, _ in pairs])
        return Recognized(
            what=counted(len(masks), "mask"),
            problem=doubt or _describe_other_endings(masks, joins=joins, naming=naming),
            sources={"": {"images": folder.uri(root)}},
            notes=notes,
            rank=MASKS,
        )

    def resolve(self) -> MasksFormat:
        """Finds out how masks are named, which splits there are, and what pixels mean.

        Raises:
            InputError: There are no masks of these images, none of the first masks can be read, or
                a file of classes cannot be.
            Problem: Most images have several masks, files name the classes differently, or nothing
                says what the values of pixels mean.
        """
        pictures, tables = self._list(0)
        masks: list[str] | None = None
        if self.semantic_masks is not None:
            masks, more = self._list(1)
            tables |= more
        naming, joins = find_pairs(pictures, masks=masks)
        if not joins:
            problem = f"no image has a mask: {_EXPECTED}"
            if masks and pictures:
                problem = f"no mask is named like an image: {min(masks)!r}, {min(pictures)!r}"
            raise InputError(uri=self.semantic_masks or self.images, problem=problem)
        several = [
            sorted(paths)
            for paths in joins.values()
            if len({naming.split_number(path)[0] for path in paths}) > 1
        ]
        if 2 * len(several) > len(joins):
            raise Problem(
                ("semantic_masks",),
                f"most images have several masks, such as {' and '.join(min(several)[:2])}: name "
                "the folder of those that count, or move the others away",
            )
        table, uri = self._read_classes(tables)
        found = msgspec.structs.replace(
            self,
            _naming=naming,
            **sort_tops(map(top_folder, joins)).fields(),
            _table=table,
            _table_uri=uri,
        )
        return msgspec.structs.replace(found, _reading=found._read_first_masks())

    def _list(self, root: int) -> tuple[list[str], dict[str, ImageRef]]:
        """Lists the pictures below a root, and the files that may name classes."""
        pictures: list[str] = []
        tables: dict[str, ImageRef] = {}
        for path, file in RootFiles(self.roots()[root]).walk():
            if listing_exclusion(path) is None and not self._is_of_masks(path, root=root):
                pictures.append(path)
            elif is_class_table(path) and not is_hidden(path):
                tables[path] = file
        return pictures, tables

    def _is_of_masks(self, path: str, *, root: int) -> bool:
        """Whether a file below the root of the images is below that of the masks, too."""
        return root == 0 and f"/{path}".startswith(self._inner)

    @functools.cached_property
    def _inner(self) -> str:
        masks = self.semantic_masks and relative_path(self.semantic_masks, root=self.images)
        return f"/{masks}/" if masks else "//"

    def _read_classes(self, tables: Mapping[str, ImageRef]) -> tuple[ClassTable, str]:
        """Reads the classes, and finds the file that names them."""
        if self.mask_classes:
            return ClassTable(ids_of_classes(self.mask_classes)), ""
        read = ((read_class_table(path, file=file), file) for path, file in sorted(tables.items()))
        found = [(table, file.uri) for table, file in read if table is not None]
        # A file with colours says more than one without.
        found.sort(key=lambda each: not each[0].colours)
        for table, _ in found[1:]:
            first = found[0][0]
            if table.ids != first.ids or table.colours not in ((), first.colours):
                raise Problem(
                    ("mask_classes",),
                    f"missing: {first.path} and {table.path} do not name the same classes; remove "
                    "one of them, or name the classes here: {1: NAME, 2: NAME}",
                )
        return found[0] if found else (ClassTable(), "")

    def _read_first_masks(self) -> MaskReading:
        """Finds out what the masks' pixels mean."""
        if self.mask_values:
            return given_values(self.mask_values)
        ids, colours, name = self._table.ids, self._table.colours, self._table.path
        # Listed once: a folder in the cloud may hold a million.
        first = first_maps(self._masks())
        if colours and show_colours(first, colours=[each for each, _ in colours]):
            return MaskReading(
                MaskValues(colours, are_colours=True),
                f"the masks have the colours of {name}: each pixel is the class of its colour",
            )
        in_voc_colours = any(self._role(path) is MaskRole.VOC_CLASS for path, _ in first)
        maps = read_first_maps(first, voc_colours=in_voc_colours)
        if not maps.number:
            hint = ""
            if not colours and show_colours(first, colours=()):
                hint = "; to read colours, name them in a class_dict.csv (name,r,g,b) in the root"
            raise InputError(
                uri=self.semantic_masks or self.images,
                problem=f"none of the first masks can be read: {maps.problem}{hint}",
            )
        declared = {
            number
            for class_name, number in ids.items()
            if number or class_name.casefold() not in BACKGROUND_NAMES
        }
        return decide_mask_values(maps, declared=lambda: declared, classes=ids)

    def _masks(self) -> Iterator[tuple[str, ImageRef]]:
        """Lists the masks."""
        root = len(self.roots()) - 1
        for path, file in RootFiles(self.roots()[root]).walk():
            if self.place(path, root=root).role is Role.MASK:
                yield path, file

    def _role(self, path: str) -> MaskRole:
        is_voc = is_voc_folder(f"{self.semantic_masks or ''}/{path}")
        return MaskRole.VOC_CLASS if is_voc else MaskRole.SEMANTIC

    def warnings(self) -> Iterator[str]:
        """Says how masks are read, and warns of classes without names."""
        if self._reading.said:
            yield self._reading.said
        elif not self._table.ids:
            yield (
                "the masks' classes have no names: name them with mask_classes: "
                f"{self._reading.naming}, or in an id2label.json in the root"
            )

    def declared_categories(self) -> Iterator[Category]:
        """Returns the classes of the masks."""
        for name, class_id in self._table.ids.items():
            yield Category(name=name, source_id=class_id, origin=self._table.path or "mask_classes")

    def annotation_files(self) -> Sequence[str]:
        """Returns the file that names the classes, if there is one."""
        return (self._table_uri,) if self._table_uri else ()

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Declares the classes of the file."""
        yield from self.declared_categories()

    def join_text(self, key: str) -> str:
        """Returns the text that joins an image to its mask."""
        return self._naming.join_image(key)

    def place(self, path: str, *, root: int) -> Place:
        """Distinguishes images and masks by their roots, or by their folders and names."""
        key = normalize_key(path)
        if is_class_table(key) or holds_objects(key) or self._is_of_masks(key, root=root):
            return Place(role=Role.OTHER)
        is_picture = listing_exclusion(path) is None
        if root == 1 or (is_picture and self.semantic_masks is None and self._naming.is_mask(key)):
            join = self._naming.join_mask(key) if is_picture else ""
            if not join:
                return Place(role=Role.OTHER)
            first, number = self._naming.split_number(key)
            return Place(
                role=Role.MASK,
                key=first,
                join=join,
                mask=self._role(key),
                values=self._reading.values,
                number=number,
            )
        return Place(role=Role.IMAGE, key=key, join=self.join_text(key))

"""The folders of Pascal VOC: what belongs together, which are splits or copies, and their lists."""

from __future__ import annotations

import contextlib
import itertools
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardbeam.configs.problem import Problem, did_you_mean
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.records import ImageRef, MaskRole
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.annotation_file import text_lines
from shardbeam.transforms.formats.base import Match, Place, Role
from shardbeam.transforms.formats.mask_values import (
    FirstMaps,
    MaskClassesKey,
    MaskReading,
    MaskValuesKey,
    decide_mask_values,
    given_values,
    ids_of_classes,
    read_first_maps,
)
from shardbeam.transforms.formats.names import (
    is_hidden,
    is_image_name,
    normalize_for_match,
    normalize_key,
)
from shardbeam.transforms.formats.parsing.root_files import (
    RootFiles,
    SplitList,
    common_folder,
    read_file,
)
from shardbeam.transforms.formats.recognition import (
    TABLE,
    Folder,
    Recognized,
    are_most,
    by_split,
    describe_missing,
)
from shardbeam.transforms.formats.split_folders import TopFolders, sort_tops, top_folder
from shardbeam.transforms.images.mask_file import has_voc_colours

# Finds the classes of the maps in SegmentationClass, and what their values mean.

# The classes of the challenges, in the order of their ids: 1 to 20 in SegmentationClass.
VOC_CLASSES = (
    *("aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow"),
    *("diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa"),
    *("train", "tvmonitor"),
)
LABEL_MAP = "labelmap.txt"
# Names that tools give the background and the border in a label map; they are not classes.
_NO_CLASSES = frozenset({"background", "ignored"})
MASK_FOLDERS = {
    "segmentationclass": MaskRole.VOC_CLASS,
    "segmentationclasspng": MaskRole.VOC_CLASS,
    "segmentationobject": MaskRole.VOC_OBJECT,
    "segmentationobjectpng": MaskRole.VOC_OBJECT,
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
    maps = {path: file for path, file in files.walk() if is_class_map(path)}
    for path in sorted(maps):
        # A map that cannot be read rejects its image later.
        with contextlib.suppress(RejectedError, InputError):
            return path, voc if has_voc_colours(read_file(maps[path])) else {}
    return "", voc


def is_class_map(path: str) -> bool:
    """Whether a file is a map of classes."""
    roles = (MASK_FOLDERS.get(folder.casefold()) for folder in path.split("/")[:-1])
    return MaskRole.VOC_CLASS in roles and path.lower().endswith(".png") and not is_hidden(path)


class MapClasses(NamedTuple):
    """The classes of the maps, and what the values of their pixels mean.

    Attributes:
        ids: `{name: id}` of the classes.
        label_map: URI of the file that names the classes; empty if there is none.
        first_mask: Path of the map whose palette decides whether the classes are VOC's; empty if
            a key or a file names them.
        reading: How the maps are read.
    """

    ids: Mapping[str, int] = {}
    label_map: str = ""
    first_mask: str = ""
    reading: MaskReading = MaskReading()


def read_maps(
    files: RootFiles, *, mask_classes: MaskClassesKey, mask_values: MaskValuesKey
) -> MapClasses:
    """Finds the classes of the maps, and what the values of pixels mean.

    The classes are those of the key or the file that names them. Otherwise they are VOC's, if
    the first map has VOC's colours.
    """
    label_map = files.find(LABEL_MAP)
    uri = first = ""
    if mask_classes:
        if label_map is not None:
            raise Problem(
                ("mask_classes",), f"{LABEL_MAP} names the classes, too; remove one of the two"
            )
        ids = ids_of_classes(mask_classes)
    elif label_map is not None:
        uri, ids = label_map.uri, _read_label_map(label_map)
    else:
        first, ids = _find_voc_classes(files)
    maps = FirstMaps()
    if first or not mask_values:
        maps = read_first_maps(
            ((path, file) for path, file in files.walk() if is_class_map(path)),
            voc_colours=True,
        )
    if first and maps.in_gray:
        ids = {}
    reading = (
        given_values(mask_values)
        if mask_values
        else decide_mask_values(maps, declared=ids.values, classes=ids)
    )
    return MapClasses(ids, label_map=uri, first_mask=first, reading=reading)


IMAGE_FOLDERS = frozenset({"jpegimages", "pngimages", "images", "image", "imgs", "img"})
ANNOTATION_FOLDERS = frozenset({"annotations", "annotation", "labels", "xmls", "xml"})
# The root of VOC's XML files.
_ROOT = re.compile(rb"<annotation[\s>]")


def join_text(key: str, *, is_id: bool = False) -> str:
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
        if folder.casefold() not in IMAGE_FOLDERS | ANNOTATION_FOLDERS
        and folder.casefold() not in MASK_FOLDERS
    ]
    return "/".join([*kept, name])


def find_folders(
    files: RootFiles, *, place: Callable[[str], Place], match: Match
) -> tuple[TopFolders, dict[str, tuple[int, int]]]:
    """Finds the top folders with annotated images, and the folders of copied XML files.

    A folder holds copies if none of its XML files has an image, and at least half of them have
    the names of XML files that have one.
    """
    # {text that joins: top folders of its images}
    images: dict[str, set[str]] = {}
    annotated: set[str] = set()
    # {folder: (name, text that joins) of its XML files}
    xmls: dict[str, list[tuple[str, str]]] = {}
    for path, _ in files.walk():
        placed = place(path)
        if is_hidden(path) or placed.role is Role.OTHER:
            continue
        text = normalize_for_match(placed.join, match)
        if placed.role is not Role.IMAGE:
            annotated.add(text)
        elif is_image_name(path):
            images.setdefault(text, set()).add(top_folder(placed.join))
        if placed.role is Role.ANNOTATION:
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


def recognize_voc(folder: Folder) -> Recognized | None:
    """Recognizes XML files with boxes.

    Without lists of `ImageSets`, upper folders that are named like splits are splits.
    """
    folders = folder.alike(
        ".xml",
        are_alike=lambda heads: are_most(_ROOT.search(head) is not None for head in heads),
    )
    if not folders:
        return _recognize_lists(folder)
    tops = {
        "/".join(
            itertools.takewhile(
                lambda part: part.casefold() not in ANNOTATION_FOLDERS, path.split("/")
            )
        )
        for path in folders
    }
    files = [path for paths in folders.values() for path in paths]
    what = counted(len(files), "XML file")
    names = [posixpath.basename(path)[: -len(".xml")] for path in files]
    images = folder.find_images(names, near=files[0])
    if images is None:
        return Recognized(what=what, problem=describe_missing(files[0], names=names[:1]))
    # The folders may have names that mean nothing here.
    joins = set(map(join_text, folder.images))
    keys = {} if any(join_text(path) in joins for path in files) else {"match": images.match}
    has_lists = any("/ImageSets/" in f"/{path}" for path in folder.named(".txt"))
    splits = by_split(sorted(tops))
    are_splits = "" not in splits and all(len(found) == 1 for found in splits.values())
    if are_splits and not (has_lists or keys):
        sources = {split: {"root": folder.uri(top)} for split, (top,) in splits.items()}
        return Recognized(what=what, sources=sources)
    root = common_folder([*sorted(tops), images.folder])
    return Recognized(what=what, sources={"": {"root": folder.uri(root), **keys}})


def _recognize_lists(folder: Folder) -> Recognized | None:
    """Recognizes the lists of a dataset of which the XML files are missing."""
    if any(map(is_class_map, folder.images)):
        return None
    lists = [
        path
        for path in folder.named(".txt")
        if "/ImageSets/" in f"/{path}"
        and _PRESENCE.match(folder.head(path).decode("utf-8", "replace"))
    ]
    if not lists:
        return None
    return Recognized(
        what=counted(len(lists), "list"),
        problem=f"{folder.uri(lists[0])} is a list of VOC that says which images show a class (1) "
        "and which do not (-1); the annotations are missing: no XML file is here. Put them into "
        f"{posixpath.join(folder.uri(lists[0]).partition('ImageSets/')[0], 'Annotations')}",
        rank=TABLE,
    )


# `trainval` repeats the two splits before it, so it is used only if both are missing.
_BOTH = "trainval"
_DEFAULT_SPLITS = ("train", "val", _BOTH, "test")
# Names of folders by their content, in lower case. They are left out when files are joined.
_IMAGE_FOLDER = "JPEGImages"
# A line of `aeroplane_train.txt`: whether an image shows the class.
_PRESENCE = re.compile(r"\S+\s+(-1|0|1)")


def read_list(item: SplitList) -> list[tuple[int, str]]:
    """Reads `(line, name)` of the images that a list names, without quotes."""
    return [
        (number, line[1:-1] if len(line) > 2 and line[0] == line[-1] == '"' else line)
        for number, line in item.lines()
    ]


def find_lists(files: RootFiles, *, image_set: str) -> tuple[dict[str, list[SplitList]], bool]:
    """Finds the lists of splits, and whether there is a `JPEGImages`."""
    folder = f"ImageSets/{image_set}"
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


def choose_lists(
    found: Mapping[str, Sequence[SplitList]],
    *,
    splits: Sequence[str] | None,
    image_set: str,
    root: str,
) -> Iterator[SplitList]:
    """Yields the lists of the wanted splits, by default of those that name images.

    Raises:
        InputError: A list is missing, or lists no images.
    """
    chosen: list[str] = []
    for split in splits or _DEFAULT_SPLITS:
        lists = sorted(found.get(split, ()), key=lambda item: item.path)
        names = [name for item in lists for _, name in read_list(item)]
        if not splits and (not names or (split == _BOTH and chosen)):
            continue
        if not lists:
            raise InputError(
                uri=root,
                problem=f"there is no list ImageSets/{image_set}/{split}.txt"
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

"""The folders of Pascal VOC: what belongs together, and which are splits or copies."""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Callable

from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.base import Match, Place, Role
from shardbeam.transforms.formats.names import (
    is_hidden,
    is_image_name,
    normalize_for_match,
    normalize_key,
)
from shardbeam.transforms.formats.parsing.root_files import RootFiles
from shardbeam.transforms.formats.parsing.roots import common_folder
from shardbeam.transforms.formats.recognition import Folder, Recognized, by_split
from shardbeam.transforms.formats.split_folders import TopFolders, sort_tops
from shardbeam.transforms.formats.voc.maps import MASK_FOLDERS

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


def _top(join: str) -> str:
    """Returns the top folder of a text that joins files, without folders like `JPEGImages`."""
    top, slash, _ = join.partition("/")
    return top if slash else ""


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
            images.setdefault(text, set()).add(_top(placed.join))
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
        are_alike=lambda heads: all(_ROOT.search(head) for head in heads),
    )
    if not folders:
        return None
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
    names = (posixpath.basename(path)[: -len(".xml")] for path in files)
    images = folder.find_images(names, near=files[0])
    if images is None:
        return Recognized(what=what, problem="none of their images is there")
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

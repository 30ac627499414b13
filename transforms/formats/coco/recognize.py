"""Recognizes COCO and LVIS files in a folder, for `shardbeam init` alone."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from typing import Any, NamedTuple

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.coco.sniff import (
    ANNOTATIONS,
    IMAGES,
    OVERLAP_BYTES,
    Task,
    first_items,
    has_segments,
    tasks_of,
)
from shardbeam.transforms.formats.recognition import (
    Folder,
    ImageFolder,
    Recognized,
    describe_missing,
    split_in,
)
from shardbeam.transforms.storage.find import storage_for


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


class _DoubtError(Exception):
    """Why no config can be proposed."""


def recognize_coco(folder: Folder, *, is_lvis: bool) -> Recognized | None:
    """Recognizes JSON files of images that are in a folder: those of LVIS, or all others."""
    files = [
        found
        for path in folder.few(".json")
        if (found := _sniff_file(path, folder=folder, is_lvis=is_lvis)) is not None
    ]
    if not files:
        return None
    what = counted(len(files), "annotation file")
    sources = _Sources(folder)
    try:
        for file in files:
            sources.add(file)
    except _DoubtError as doubt:
        return Recognized(what=what, problem=str(doubt))
    outlines = any(file.outlines for file in files)
    return Recognized(what=what, sources=sources.by_split, notes=sources.notes, outlines=outlines)


class _Sources:
    """The sources of a config that read some files of a folder: one for each split.

    Attributes:
        by_split: `{split: source}`; the split is empty if no file names one.
        notes: What is not read, and how to read it.
    """

    def __init__(self, folder: Folder) -> None:
        self.by_split: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []
        self._folder = folder
        # {(split, what files annotate): the first such file}
        self._first: dict[tuple[str, frozenset[str]], _File] = {}

    def add(self, file: _File) -> None:
        """Adds a file to the source of its split.

        Raises:
            _DoubtError: It does not fit the files before it, or what it names is missing.
        """
        images = self._folder.find_images(file.names, near=file.path)
        if images is None:
            raise _DoubtError(describe_missing(file.path, names=file.names))
        split = split_in(file.path) or split_in(images.folder) or _shared_ending(file.path, images)
        source = self._source(split, images=images, path=file.path)
        if len(self.by_split) > 1 and "" in self.by_split:
            raise _DoubtError("some of the files name a split and others do not")
        first = self._first.setdefault((split, file.kind), file)
        if first is not file:
            self._note_second(first, second=file)
        elif file.masks:
            source["panoptic"] = self._folder.uri(file.path)
            source["panoptic_masks"] = self._find_masks(file, images=images)
        else:
            source.setdefault("annotations", []).append(self._folder.uri(file.path))

    def _source(self, split: str, *, images: ImageFolder, path: str) -> dict[str, Any]:
        """Returns the source of a split, which has one folder of images."""
        root = self._folder.uri(images.folder)
        source = self.by_split.setdefault(split, {"images": root})
        if source["images"] != root:
            raise _DoubtError(
                f"the images of {path} are in {root}, and those of another file "
                f"{f'of split {split!r} ' if split else ''}in {source['images']}"
            )
        if images.match != "path":
            source["match"] = images.match
        return source

    def _note_second(self, first: _File, *, second: _File) -> None:
        """Says how to read the second of two files that annotate the same images."""
        if not set(first.names) & set(second.names):
            kinds = ", ".join(sorted(first.kind)) or "images"
            raise _DoubtError(f"{first.path} and {second.path} both hold {kinds}")
        uri = self._folder.uri(second.path)
        value = uri if second.masks else f"[{uri}]"
        self.notes.append(
            f"{first.path} and {second.path} are about the same images, and the first is read; to "
            f"read the other one instead: {second.key}: {value}"
        )

    def _find_masks(self, file: _File, *, images: ImageFolder) -> str:
        masks = self._folder.find_images(file.masks, near=file.path, besides=images.folder)
        if masks is None or masks.match != "path":
            raise _DoubtError(f"the PNGs that {file.path} names are not there: {file.masks[0]!r}")
        return self._folder.uri(masks.folder)


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

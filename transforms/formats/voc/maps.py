"""Finds the classes of the maps in SegmentationClass, and what their values mean."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import NamedTuple

from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.records import ImageRef, MaskRole
from shardbeam.transforms.formats.annotation_file import text_lines
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
from shardbeam.transforms.formats.names import is_hidden
from shardbeam.transforms.formats.parsing.root_files import RootFiles, read_file
from shardbeam.transforms.images.mask_file import has_voc_colours

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

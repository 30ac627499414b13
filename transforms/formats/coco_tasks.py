"""What a COCO file is about, told from its first annotations: no file says it itself."""

from __future__ import annotations

import enum
import json
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.formats.base import Kind
from shardbeam.transforms.formats.coco_file import panoptic_file_error
from shardbeam.transforms.storage.base import Storage

_READ_BYTES = 4 << 20
# An annotation longer than this is taken for broken.
_MAX_WINDOW_BYTES = 64 << 20
_MAX_ANNOTATIONS = 1_000
_SECTION = re.compile(rb'(?<!\\)"annotations"\s*:\s*')
# As long as the text that `_SECTION` matches in any sane file, which two reads may cut apart.
_OVERLAP_BYTES = 256
_decoder = json.JSONDecoder()
_SEPARATOR = re.compile(r"[\s,]*")
_STUFF_NAME = re.compile(r"(?<![a-z])stuff(?![a-z])", re.IGNORECASE)


class Task(str, enum.Enum):
    """Which keys a COCO source fills.

    Attributes:
        DETECTION: Objects.
        KEYPOINTS: Objects with keypoints.
        CAPTIONS: Captions.
        CLASSIFICATION: Classes of the image: annotations with a category, and without a box.
        PANOPTIC: Panoptic segments.
        SEMANTIC: A map of classes, from PNGs or from a file of stuff.
    """

    DETECTION = "detection"
    KEYPOINTS = "keypoints"
    CAPTIONS = "captions"
    CLASSIFICATION = "classification"
    PANOPTIC = "panoptic"
    SEMANTIC = "semantic"


_KINDS: Mapping[Task, frozenset[Kind]] = {
    Task.DETECTION: frozenset({Kind.DETECTION}),
    Task.KEYPOINTS: frozenset({Kind.DETECTION, Kind.KEYPOINTS}),
    Task.CAPTIONS: frozenset({Kind.CAPTIONS}),
    Task.CLASSIFICATION: frozenset({Kind.CLASSIFICATION}),
    Task.PANOPTIC: frozenset({Kind.PANOPTIC}),
    Task.SEMANTIC: frozenset({Kind.SEMANTIC}),
}


def kinds_of_tasks(tasks: Iterable[Task], *, masks: bool) -> frozenset[Kind]:
    """Names the groups of Example keys that tasks fill.

    Args:
        tasks: The tasks.
        masks: Whether objects carry their segmentation.
    """
    kinds: frozenset[Kind] = frozenset().union(*(_KINDS[task] for task in tasks))
    if masks and Kind.DETECTION in kinds:
        kinds |= {Kind.INSTANCE_MASKS}
    return kinds


def is_stuff_name(uri: str) -> bool:
    """Whether a file is one of stuff by its name, such as `stuff_train2017.json`.

    Its content is that of an instances file: nothing else tells.
    """
    return _STUFF_NAME.search(uri.rpartition("/")[2]) is not None


def sniff_tasks(uri: str, *, storage: Storage) -> frozenset[Task]:
    """Tells what a file is about, from the beginning of its `annotations`.

    The file is read up to these and somewhat beyond, and not parsed: what is wrong with it is
    for the parser to say. None of its annotations is found where it has none.

    Raises:
        InputError: The file cannot be read, or holds panoptic segments.
    """
    tasks: set[Task] = set()
    labels = False
    for annotation in _first_annotations(uri, storage=storage):
        if "segments_info" in annotation:
            raise panoptic_file_error(uri)
        if annotation.get("bbox") or annotation.get("segmentation"):
            tasks.add(Task.SEMANTIC if is_stuff_name(uri) else Task.DETECTION)
        if annotation.get("keypoints"):
            tasks.add(Task.KEYPOINTS)
        if annotation.get("caption") is not None:
            tasks.add(Task.CAPTIONS)
        labels |= "category_id" in annotation
    # Among objects and captions a bare category is an object that lacks its box.
    return frozenset(tasks or ({Task.CLASSIFICATION} if labels else ()))


def in_order(tasks: Collection[Task]) -> list[Task]:
    """Lists tasks, always in the same order."""
    return [task for task in Task if task in tasks]


def _first_annotations(uri: str, *, storage: Storage) -> list[dict[str, Any]]:
    try:
        stored = storage.stat(uri)
        if stored is None:
            raise InputError(uri=uri, problem="no such file")
        window = b""
        is_inside = False
        for offset in range(0, stored.size_bytes, _READ_BYTES):
            size_bytes = min(_READ_BYTES, stored.size_bytes - offset)
            window += storage.read(uri, offset=offset, size_bytes=size_bytes)
            if not is_inside:
                begin = _SECTION.search(window)
                # What stands at the very end may be cut off in its spaces.
                if begin is None or begin.end() == len(window):
                    window = window[-_OVERLAP_BYTES:]
                    continue
                is_inside = True
                window = window[begin.end() :]
            found, is_complete = _decode_objects(window)
            # One more read where the first annotation alone is longer than what was read so far.
            if found or is_complete or len(window) >= _MAX_WINDOW_BYTES:
                return found
    except OSError as error:
        raise InputError(
            uri=uri, problem=f"the file cannot be read: {error.strerror or error}"
        ) from error
    return []


def _decode_objects(window: bytes) -> tuple[list[dict[str, Any]], bool]:
    """Decodes the objects of a list whose text may end anywhere; says whether there are no more."""
    # Cut in the middle of a character, the last one is no matter.
    text = window.decode("utf-8", "replace")
    if text and text[0] != "[":
        return [], True
    position = 1
    found: list[dict[str, Any]] = []
    while len(found) < _MAX_ANNOTATIONS:
        position = _SEPARATOR.match(text, position).end()  # type: ignore[union-attr]  # It matches anything.
        if text[position : position + 1] not in ("{", ""):
            return found, True
        try:
            item, position = _decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return found, False
        found.append(item)
    return found, False

"""Label Studio: a JSON file with the annotations of many tasks, each about one image.

The format: https://labelstud.io/guide/export (JSON).
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import present_kinds
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import AnnotationEntry, Category, encode_annotations
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.annotation_file import (
    FoundClasses,
    count_replaced,
    decode_json,
    drop_outlines,
    explain_errors,
    lost_classes,
    repeated_key_within,
    with_defect,
    with_replaced,
)
from shardbeam.transforms.formats.base import Format, Kind, Match
from shardbeam.transforms.formats.label_studio.regions import Result, read_results
from shardbeam.transforms.formats.names import (
    escape_key,
    is_image_name,
    key_problem,
    normalize_for_match,
    normalize_key,
)
from shardbeam.transforms.formats.parsing.json_sections import find_entries, open_json
from shardbeam.transforms.formats.parsing.root_files import RootFiles
from shardbeam.transforms.formats.recognition import Folder, Recognized, Sources, by_split, split_in
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

_UPLOAD, _LOCAL_FILES = "/data/upload/", "/data/local-files/"
# Label Studio puts this before the name of an uploaded file.
_PREFIX = re.compile(r"[0-9a-f]{8}-(?=.)")
# Tasks that are read to find out how images are named.
_SAMPLE = 20
_TASKS = re.compile(rb'\s*\[\s*\{.*"(annotations|completions)"\s*:\s*\[', re.DOTALL)


class _Annotation(msgspec.Struct):
    result: list[Result] = []
    was_cancelled: bool | None = None
    # The old name of that.
    skipped: bool | None = None


class _Task(msgspec.Struct):
    data: dict[str, Any] | None = None
    # Decoded if the image's name is good.
    annotations: msgspec.Raw = msgspec.Raw(b"[]")
    # The old name of these.
    completions: msgspec.Raw = msgspec.Raw(b"[]")
    # In JSON-MIN only.
    annotation_id: int | None = None


_task_decoder = JsonDecoder(_Task)
_annotations_decoder = JsonDecoder(list[_Annotation] | None, strict=False)


class LabelStudioFormat(Format, frozen=True, kw_only=True):
    """Label Studio's JSON export, and the images that its tasks are about.

    Attributes:
        images: Root folder of the images.
        annotations: The JSON files.
        image_field: The field of a task's data that names the image.
        annotator: Which annotation counts where a task has several.
        choices: The tag whose choices are the labels.
        keypoints: Labels of points that are keypoints, in order. They belong to the region to which
            Label Studio has attached them.
        _masks: Whether objects carry their outlines and masks.
        _drops_prefix: Whether images lack the prefix of uploads.
    """

    SUMMARY = "Label Studio JSON: boxes, polygons, brush masks, choices"
    FILES = ("annotations",)
    UNANNOTATED = "drop"
    # Corners in pixels.
    box_reading = BoxReading()

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    annotations: Annotated[
        list[Location], msgspec.Meta(min_length=1), named("JSON export of Label Studio")
    ]
    image_field: Annotated[str, named("field of a task's data that names the image")] | None = None
    annotator: (
        Annotated[Literal["first"], named("annotation that counts if a task has several")] | None
    ) = None
    choices: Annotated[str, named("name of the tag whose choices are the labels")] | None = None
    keypoints: Annotated[list[str], named("label of a keypoint; give them in their order")] = []
    match: Match = "path"
    _masks: bool = False
    _drops_prefix: bool = False

    def __post_init__(self) -> None:
        if "" in self.keypoints or len(set(self.keypoints)) < len(self.keypoints):
            raise Problem(("keypoints",), "expected labels, each once")

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes JSON exports, and finds their images, with or without the prefix."""
        heads = {path: folder.head(path) for path in folder.few(".json")}
        paths = [path for path, head in heads.items() if _TASKS.match(head) and b'"result"' in head]
        if not paths:
            return None
        what = counted(len(paths), "JSON file")
        splits = by_split(paths)
        is_split = len(splits) > 1 and "" not in splits
        sources = Sources(folder, what=what)
        for path in paths:
            made = cls(images=folder.location(), annotations=[folder.location(path)])
            try:
                names = [*itertools.islice(made._names(0), 50)]
            except InputError as error:
                return Recognized(what=what, problem=f"{folder.uri(path)}: {error.problem}")
            images = sources.find_images(path, names, [*map(_without_prefix, names)])
            sources.add(path, images, split=split_in(path) if is_split else "")
        return Recognized(what=what, sources=sources.by_split)

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects and labels, and keypoints and masks if these are wanted."""
        more = {Kind.INSTANCE_MASKS: self._masks, Kind.KEYPOINTS: self.keypoints}
        return frozenset({Kind.DETECTION, Kind.CLASSIFICATION}) | present_kinds(more)

    def resolve(self) -> LabelStudioFormat:
        """Finds out by the first tasks whether images have the prefix of uploads.

        Raises:
            InputError: A file cannot be read, or is no such export.
        """
        names: list[str] = []
        for file_index in range(len(self.annotations)):
            names += itertools.islice(self._names(file_index), _SAMPLE)
        prefixed = [name for name in names if _without_prefix(name) != name]
        return msgspec.structs.replace(
            self,
            _drops_prefix=not self._has_any(prefixed)
            and self._has_any(map(_without_prefix, prefixed)),
        )

    def _has_any(self, names: Iterator[str] | Sequence[str]) -> bool:
        """Whether an image of one of some names is there."""
        files, names = RootFiles(self.images), [*names]
        if any(files.find(name) is not None for name in names):
            return True
        if self.match == "path" or not names:
            return False
        loose = {normalize_for_match(name, self.match) for name in names}
        return any(normalize_for_match(path, self.match) in loose for path, _ in files.walk())

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file, task by task."""
        uri = self.annotations[file_index]
        file = uri.rpartition("/")[2]
        found = FoundClasses()
        tags: set[str] = set()
        for position, text in self._tasks(storage=storage, file_index=file_index):
            place = f"$[{position}]"
            entry = AnnotationEntry(
                key=f"{file}: {place}",
                file_index=file_index,
                position=position,
                origin=f"{file}: {place}",
            )
            reason = Reason.ANNOTATION_MALFORMED
            try:
                task = decode_json(text, decoder=_task_decoder, uri=uri, place=place)
                key = self._key(task)
                if problem := key_problem(key):
                    reason, key = Reason.UNREADABLE_NAME, escape_key(key) or entry.key
                entry = msgspec.structs.replace(entry, key=key)
                if problem or (problem := _repeated(text)):
                    raise ValueError(problem)
                annotations = self._annotations(task, uri=uri, place=place)
                if annotations is None:
                    continue
                if isinstance(annotations, Exclusion):
                    yield msgspec.structs.replace(entry, exclusion=annotations)
                    continue
                read, names = read_results(annotations, keypoints=self.keypoints)
            except (InputError, ValueError) as error:
                detail = f"{place}: {error}"
                if isinstance(error, InputError):
                    detail = f"{error.place}: {error.problem}"
                yield with_defect(entry, f"{file}: {detail}", reason=reason)
                continue
            tags |= names
            if len(tags) > 1:
                raise InputError(
                    uri=uri,
                    place=place,
                    problem=f"choices of several tags: {', '.join(sorted(tags))[:80]}: name the "
                    "one whose choices are the labels in choices (--choices)",
                )
            read = with_replaced(read, count_replaced(text))
            found.add(read)
            read, outlines = drop_outlines(read, unless=self._masks)
            encoded = encode_annotations(read)
            yield msgspec.structs.replace(entry, annotations=encoded, outlines=outlines)
        for name in found.names:
            yield Category(name=name, origin=uri, keypoints=tuple(self.keypoints))
        yield from lost_classes(found.lost, origin=uri, fixes={"keypoint": "--keypoints {label}"})

    def _tasks(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[tuple[int, bytes | msgspec.Raw]]:
        uri = self.annotations[file_index]
        with explain_errors(uri):
            text = open_json(uri, storage=storage)
            entries = find_entries(text, uri=uri)
        if not len(entries):
            raise InputError(uri=uri, place="$", problem="no tasks; expected a JSON export")
        counters.annotation_bytes.add(text.size_bytes)
        has_data = False
        for position, entry in enumerate(entries):
            if not has_data:
                has_data = _has_data(entry, uri=uri, position=position)
            yield position, entry

    def _names(self, file_index: int) -> Iterator[str]:
        """Yields the names of images, with their prefixes, as far as they can be read."""
        uri = self.annotations[file_index]
        for position, text in self._tasks(storage=storage_for(uri), file_index=file_index):
            try:
                task = decode_json(text, decoder=_task_decoder, uri=uri, place=f"$[{position}]")
                name = _name_of(self._image(task))
            except (InputError, ValueError):
                continue
            if key_problem(name) is None:
                yield name

    def _key(self, task: _Task) -> str:
        name = _name_of(self._image(task))
        return _without_prefix(name) if self._drops_prefix else name

    def _image(self, task: _Task) -> str:
        """Finds what names a task's image.

        Raises:
            ValueError: Nothing does, or several fields do.
        """
        data = task.data or {}
        if self.image_field is not None:
            if not isinstance(image := data.get(self.image_field), str):
                raise ValueError(f"data.{self.image_field}: expected the name of an image")
            return image
        texts = {key: value for key, value in data.items() if isinstance(value, str)}
        images = [value for value in texts.values() if is_image_name(_name_of(value))]
        if not images and isinstance(data.get("image"), str):
            images = [data["image"]]
        if images and images[0].startswith("data:"):
            raise ValueError("data: the picture is in the file, as a data URI: save it as a file")
        if len(set(images)) != 1:
            raise ValueError(
                f"data: {len(images)} fields name an image, of {', '.join(texts)[:80] or 'none'}: "
                "set image_field to the one that does"
            )
        return str(images[0])

    def _annotations(self, task: _Task, *, uri: str, place: str) -> list[Result] | Exclusion | None:
        """Finds the annotation of a task that counts.

        Returns:
            Its results; or the rule that leaves a skipped task out; or None where nobody has
            annotated it.

        Raises:
            InputError: The annotations cannot be read.
            ValueError: There are several.
        """
        found: list[_Annotation] = []
        for name in ("annotations", "completions"):
            text, at = getattr(task, name), f"{place}.{name}"
            found += decode_json(text, decoder=_annotations_decoder, uri=uri, place=at) or []
        kept = [each for each in found if not (each.was_cancelled or each.skipped)]
        if not kept:
            return Exclusion.DISCARDED if found else None
        if len(kept) > 1 and self.annotator is None:
            raise ValueError(
                f"{len(kept)} annotations of one task: set annotator to first, or keep one of them "
                "in Label Studio"
            )
        results = kept[0].result
        if self.choices is None:
            return results
        wanted = (None, self.choices)
        return [it for it in results if it.type != "choices" or it.from_name in wanted]


def _has_data(text: bytes | msgspec.Raw, *, uri: str, position: int) -> bool:
    """Whether a task has data; raises InputError if it is one of another export."""
    place = f"$[{position}]"
    try:
        task = decode_json(text, decoder=_task_decoder, uri=uri, place=place)
    except InputError:
        # It becomes a reject.
        return False
    if task.data is None:
        problem = "a task without `data`; expected Label Studio's JSON export"
        if task.annotation_id is not None:
            problem = "this is JSON-MIN, which mixes choices with other texts: export as JSON"
        raise InputError(uri=uri, place=place, problem=problem)
    return True


def _repeated(text: bytes | msgspec.Raw) -> str:
    key = repeated_key_within(text)
    return "" if key is None else f"the key {key!r} is given twice in one object"


def _name_of(image: str) -> str:
    """Returns the part of a path or URI by which an image can be joined; nothing is fetched.

    An upload has only its file's name, for nobody has the folders of Label Studio's server. A file
    of its local storage is named in a query; other URIs have a path behind the bucket or the host.
    """
    try:
        parts = urlsplit(image)
        query = parse_qs(parts.query).get("d", [""])[0]
    except ValueError:
        return normalize_key(image)
    path = unquote(parts.path) if parts.scheme or parts.path.startswith("/data/") else image
    if path.startswith(_UPLOAD):
        return normalize_key(path.rpartition("/")[2])
    if path.startswith(_LOCAL_FILES) and query:
        return normalize_key(query.replace("\\", "/").lstrip("/"))
    if parts.scheme and len(parts.scheme) > 1 and parts.scheme != "data":
        return normalize_key(path.lstrip("/"))
    return normalize_key(image)


def _without_prefix(name: str) -> str:
    """Removes the prefix of an upload from a name without folders."""
    return name if "/" in name else _PREFIX.sub("", name, count=1)

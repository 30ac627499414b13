"""CVAT: an XML file with boxes, polygons, masks, skeletons and tags of images, or of a video.

The format: https://docs.cvat.ai/docs/dataset_management/formats/format-cvat/ (version 1.1).
"""

from __future__ import annotations

import functools
import html
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Annotated

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import present_kinds
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import AnnotationEntry, Category, encode_annotations
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.examples.features import ExtraFeature, FeatureKind, value_list
from shardbeam.transforms.formats.annotation_file import (
    FoundClasses,
    drop_outlines,
    lost_classes,
    read_part,
    with_defect,
)
from shardbeam.transforms.formats.base import Format, Kind, Match, Place, Role
from shardbeam.transforms.formats.cvat.shapes import (
    OCCLUDED,
    TRACK,
    ImageReader,
    Video,
    frame_name,
    frame_number,
    read_frames,
    read_video,
)
from shardbeam.transforms.formats.names import (
    escape_key,
    key_problem,
    listing_exclusion,
    normalize_key,
)
from shardbeam.transforms.formats.parsing.root_files import RootFiles
from shardbeam.transforms.formats.parsing.xml_file import XmlElement, xml_children
from shardbeam.transforms.formats.recognition import Folder, Recognized, Sources
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for

_READ_BYTES = 4 << 20
# `annotations/meta/project/labels/label/attributes/attribute/name`.
_MAX_DEPTH = 8
# Images that are looked for to find out whether subsets have their own folders.
_SAMPLE = 5

# CVAT's name of the subset of tasks without one.
_DEFAULT_SUBSET = "default"

# These search the beginning of a file, which may be cut off anywhere.
_IMAGE = re.compile(rb"<image\s[^<>]*>")
_FRAME = re.compile(rb'\bframe="([0-9]{1,9})"')
_ATTRIBUTE = re.compile(r'\b(\w+)="([^"]*)"')


class _Meta(msgspec.Struct, frozen=True, kw_only=True):
    """The element `meta`, which comes before the images.

    Attributes:
        labels: `{class: names of its keypoints}`; None where the file declares no labels.
        subsets: Names of subsets, in order.
        attributes: Names of the labels' attributes.
    """

    labels: Mapping[str, tuple[str, ...]] | None = None
    subsets: tuple[str, ...] = ()
    attributes: tuple[str, ...] = ()


class CvatFormat(Format, frozen=True, kw_only=True):
    """CVAT for images 1.1, and for video 1.1: `annotations.xml`, and the folder `images` beside it.

    A file for video names frames by their numbers, and so do the images' names.

    Attributes:
        images: Root folder of the images.
        annotations: The XML files; of a video only one.
        label_attribute: The attribute that is the class of shapes that have it.
        _masks: Whether objects carry their polygons and masks.
        _splits: The subsets.
        _in_subsets: Whether images lie in folders named like their subsets.
        _has_skeletons: Whether a class has keypoints.
        _video: The frames, if the file is of a video.
    """

    SUMMARY = "CVAT XML, for images and video 1.1: boxes, polygons, masks, skeletons and tags"
    FILES = ("annotations",)
    UNANNOTATED = "drop"
    # Pixels are counted from 0.
    first_pixel = 0.0
    # Corners in pixels.
    box_reading = BoxReading()

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    annotations: Annotated[list[Location], msgspec.Meta(min_length=1), named("XML file of CVAT")]
    label_attribute: (
        Annotated[str, named("attribute that is the class of objects, instead of their label")]
        | None
    ) = None
    match: Match = "path"
    _masks: bool = False
    _splits: tuple[str, ...] = ()
    _in_subsets: bool = False
    _has_skeletons: bool = False
    _video: Video | None = None

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes XML files of CVAT for images, or one for video.

        Images may have names without extensions, and are then joined by name.
        """
        heads = {path: folder.head(path) for path in folder.few(".xml")}
        heads = {path: head for path, head in heads.items() if b"<annotations>" in head}
        if not heads:
            return None
        what = counted(len(heads), "XML file")
        sources = Sources(folder, what=what)
        for path, head in heads.items():
            names: list[str] = []
            from_one: list[str] = []
            is_video = b"<track" in head
            if is_video:
                if len(heads) > 1:
                    problem = f"{path} is of a video: name a source for each video"
                    return Recognized(what=what, problem=problem)
                frames = [int(number) for number in _FRAME.findall(head)]
                names += map(frame_name, frames)
                # Frames that are numbered from 1: `resolve` says so.
                from_one = [frame_name(number + 1) for number in frames]
            for tag in map(bytes.decode, _IMAGE.findall(head)):
                found = {key: html.unescape(value) for key, value in _ATTRIBUTE.findall(tag)}
                names.append("/".join(filter(None, (found.get("subset"), found.get("name", "")))))
                names.append(found.get("name", ""))
            images = sources.find_images(path, names, from_one)
            # Frames are joined by their numbers.
            sources.add(path, images._replace(match="path") if is_video else images)
        outlines = any(b"<polygon " in head or b"<mask " in head for head in heads.values())
        return Recognized(what=what, sources=sources.by_split, outlines=outlines)

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects and labels, keypoints if a class has any, and masks if these are wanted."""
        more = {Kind.INSTANCE_MASKS: self._masks, Kind.KEYPOINTS: self._has_skeletons}
        return frozenset({Kind.DETECTION, Kind.CLASSIFICATION}) | present_kinds(more)

    def resolve(self) -> CvatFormat:
        """Finds subsets, skeletons and the images' folders from the beginnings of the files.

        Raises:
            InputError: A file cannot be read, or is not an XML file of CVAT for images.
        """
        files = RootFiles(self.images)
        subsets: dict[str, None] = {}
        in_subsets = has_skeletons = False
        video: Video | None = None
        attributes: dict[str, None] = {}
        for uri in self.annotations:
            about, meta = XmlElement("meta", line=1, uri=uri), _Meta()
            sampled = 0
            for element in _elements(uri, storage=storage_for(uri)):
                if element.tag == "meta":
                    about, meta = element, _read_meta(element)
                elif element.tag == "image":
                    sampled += 1
                    key = _key(element, in_subsets=True)
                    in_subsets |= (
                        key_problem(key) is None
                        and files.find(key) is not None
                        and ("subset" in element.attributes)
                    )
                elif element.tag == "track":
                    video = read_video(about)
                if sampled == _SAMPLE or video is not None:
                    break
            attributes |= dict.fromkeys(meta.attributes)
            subsets |= dict.fromkeys(meta.subsets)
            has_skeletons |= any((meta.labels or {}).values())
        if self.label_attribute is not None and self.label_attribute not in attributes:
            known = ", ".join(map(repr, [*attributes][:8])) or "none"
            raise Problem(("label_attribute",), f"no label has this attribute; there are: {known}")
        if video is not None:
            self._check_video(video, files=files)
        return msgspec.structs.replace(
            self,
            # A project without subsets exports one subset with this name.
            _splits=tuple(subsets) if set(subsets) != {_DEFAULT_SUBSET} else (),
            _in_subsets=in_subsets,
            _has_skeletons=has_skeletons,
            _video=video,
        )

    def _check_video(self, video: Video, *, files: RootFiles) -> None:
        uri = self.annotations[0]
        if len(self.annotations) > 1:
            problem = "frames of several files have the same numbers: name a source for each video"
            raise InputError(uri=uri, problem=problem)
        names = (path for path, _ in files.walk() if listing_exclusion(path) is None)
        numbers = {number for path in names if (number := frame_number(path)) is not None}
        video.check_numbers(numbers, uri=uri)

    def place(self, path: str, *, root: int) -> Place:
        """Joins the images of a video by their numbers."""
        key = normalize_key(path)
        number = None if self._video is None else frame_number(key)
        return Place(role=Role.IMAGE, key=key, join=key if number is None else frame_name(number))

    def predefined_splits(self) -> Sequence[str]:
        """Returns the subsets that the files name.

        Raises:
            InputError: One of them cannot be the name of a split.
        """
        for split in self._splits:
            if not (split.isascii() and split.isidentifier()) or split.startswith("_"):
                raise InputError(
                    uri=self.annotations[0],
                    place="subset",
                    problem=f"{split[:40]!r} cannot be a split: a letter, then letters, digits "
                    "and _; name the splits with --split or --fractions",
                )
        return self._splits

    def extra_features(self) -> Sequence[ExtraFeature]:
        """Declares if an object is occluded, and its track, as TF Object Detection API does."""
        keys = (OCCLUDED,) if self._video is None else (OCCLUDED, TRACK)
        return tuple(
            ExtraFeature(value_list(key, FeatureKind.INT64), per_object=True) for key in keys
        )

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file, image by image."""
        uri = self.annotations[file_index]
        meta = _Meta()
        found = FoundClasses()
        elements = _elements(uri, storage=storage)
        for position, element in enumerate(_with_frames(elements, uri=uri)):
            if element.tag == "meta":
                meta = _read_meta(element)
            if element.tag != "image":
                continue
            key = _key(element, in_subsets=self._in_subsets)
            split = element.attributes.get("subset", meta.subsets[0] if meta.subsets else "")
            entry = AnnotationEntry(
                key=key,
                file_index=file_index,
                position=position,
                image_id=escape_key(element.attributes.get("id", "")),
                split=split if split in self._splits else "",
            )
            problem = key_problem(key)
            try:
                if problem is not None:
                    key = escape_key(key) or f"{uri.rpartition('/')[2]}: line {element.line}"
                    raise element.error(f"an <image> whose name cannot be used: {problem}")
                reader = ImageReader(
                    element,
                    labels=meta.labels,
                    label_attribute=self.label_attribute,
                    is_frame=self._video is not None,
                )
                annotations = reader.read()
            except InputError as error:
                reason = Reason.UNREADABLE_NAME if problem else Reason.ANNOTATION_MALFORMED
                detail = f"{uri.rpartition('/')[2]}: {error.place}: {error.problem}"
                entry = msgspec.structs.replace(entry, key=key)
                yield with_defect(entry, detail, reason=reason)
                continue
            found.add(annotations)
            annotations, outlines = drop_outlines(annotations, unless=self._masks)
            encoded = encode_annotations(annotations)
            yield msgspec.structs.replace(entry, annotations=encoded, outlines=outlines)
        labels = meta.labels
        if labels is None or self.label_attribute is not None:
            labels = {name: (labels or {}).get(name, ()) for name in found.names}
        for name, keypoints in labels.items():
            yield Category(name=name, origin=uri, keypoints=keypoints)
        yield from lost_classes(found.lost, origin=uri)


def _elements(uri: str, *, storage: Storage) -> Iterator[XmlElement]:
    """Reads a file piece by piece; yields `meta`, and each `image` or each `track`."""
    kind = ""
    for element in xml_children(
        _parts(uri, storage=storage), root="annotations", max_depth=_MAX_DEPTH, uri=uri
    ):
        if element.tag in ("image", "track"):
            if kind not in ("", element.tag):
                raise element.error("images and tracks in one file")
            kind = element.tag
        yield element
    if not kind:
        problem = "no <image> and no <track> found; expected CVAT for images 1.1, or for video 1.1"
        raise InputError(uri=uri, problem=problem)


def _with_frames(elements: Iterable[XmlElement], *, uri: str) -> Iterator[XmlElement]:
    """Yields the elements of a file, with an `image` for each frame instead of tracks."""
    about = XmlElement("meta", line=1, uri=uri)
    tracks: list[XmlElement] = []
    for element in elements:
        if element.tag == "track":
            tracks.append(element)
            continue
        if element.tag == "meta":
            about = element
        yield element
    if tracks:
        yield from read_frames(tracks, video=read_video(about), uri=uri)


def _parts(uri: str, *, storage: Storage) -> Iterator[bytes]:
    for offset in itertools.count(0, _READ_BYTES):
        part = read_part(uri, storage=storage, offset=offset, size_bytes=_READ_BYTES)
        if not offset and not part.strip():
            raise InputError(uri=uri, problem="the file is empty")
        yield part
        counters.annotation_bytes.add(len(part))
        if len(part) < _READ_BYTES:
            return


def _read_meta(meta: XmlElement) -> _Meta:
    """Reads the labels and subsets of a project, a task or a job."""
    labels: dict[str, list[str]] | None = None
    subsets: dict[str, None] = {}
    attributes: dict[str, None] = {}
    for owner in meta.children:
        for text in (child for child in owner.children if child.tag in ("subset", "subsets")):
            for subset in "".join(text.texts).split("\n"):
                if subset.strip() or text.tag == "subsets":
                    subsets[subset.strip() or _DEFAULT_SUBSET] = None
        for group in owner.all("labels"):
            labels = {} if labels is None else labels
            parents = []
            for label in group.all("label"):
                name, parent = label.one("name"), label.one("parent")
                for declared in (it for each in label.all("attributes") for it in each.children):
                    attributes |= {it.text: None for it in declared.all("name")}
                if name is None or not name.text:
                    raise label.error("a <label> without <name>")
                if parent is None or not parent.text:
                    labels.setdefault(name.text, [])
                else:
                    parents.append((parent.text, name.text))
            for parent_name, point in parents:
                if point not in (points := labels.setdefault(parent_name, [])):
                    points.append(point)
    return _Meta(
        labels=None if labels is None else {name: tuple(own) for name, own in labels.items()},
        subsets=tuple(subsets),
        attributes=tuple(attributes),
    )


def _key(image: XmlElement, *, in_subsets: bool) -> str:
    name, subset = image.attributes.get("name", ""), image.attributes.get("subset", "")
    return normalize_key(f"{subset}/{name}" if in_subsets and subset and name else name)

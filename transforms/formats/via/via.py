"""VIA (VGG Image Annotator) 1 and 2: JSON exports, projects, and CSV.

The tool: https://www.robots.ox.ac.uk/~vgg/software/via/.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import BoxReading
from shardbeam.transforms.core.labels import check_class_name
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import AnnotationEntry, Category, encode_annotations
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.annotation_file import lost_classes
from shardbeam.transforms.formats.base import Format, Kind, Match
from shardbeam.transforms.formats.names import escape_key, key_problem, normalize_key
from shardbeam.transforms.formats.parsing.roots import short_names
from shardbeam.transforms.formats.recognition import Folder, Recognized, describe_missing, split_in
from shardbeam.transforms.formats.via.regions import (
    count_attributes,
    find_class_attribute,
    read_regions,
)
from shardbeam.transforms.formats.via.via_file import read_via_file
from shardbeam.transforms.storage.base import Storage
from shardbeam.transforms.storage.find import storage_for


class ViaFormat(Format, frozen=True, kw_only=True):
    """VIA's JSON exports, projects and CSV files, each about many images.

    Attributes:
        images: Root folder of the images.
        annotations: The JSON and CSV files.
        label_attribute: The attribute of regions that is their class. Without it, the one that
            all files share.
        class_name: The class of regions without a value of that attribute.
        _masks: Whether objects carry their outlines.
        _attribute: The attribute that is the class; empty where no region has one.
    """

    SUMMARY = "VIA (VGG Image Annotator) JSON and CSV: boxes, polygons, circles, ellipses"
    # VIA lists every image that was opened, also those that nobody has annotated.
    UNANNOTATED = "drop"
    # Pixels are counted from 0.
    first_pixel = 0.0
    # Corners in pixels.
    box_reading = BoxReading()

    images: Annotated[Location, named("root folder of the images", metavar="DIR")]
    annotations: Annotated[
        list[Location], msgspec.Meta(min_length=1), named("JSON or CSV file of VIA")
    ]
    label_attribute: Annotated[str, named("attribute of regions that is their class")] | None = None
    class_name: (
        Annotated[str, msgspec.Meta(min_length=1), named("class of regions without one")] | None
    ) = None
    match: Match = "path"
    _masks: bool = False
    _attribute: str = ""

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes files of VIA; of several that say the same about an image, one is read."""
        files = {
            path: found for path in folder.few(".json", ".csv") if (found := _sniff(folder, path))
        }
        if not files:
            return None
        what = counted(len(files), "VIA file")
        sources: dict[str, dict[str, Any]] = {}
        # {folder of images: {image: its regions}}
        known: dict[str, dict[str, tuple[str, object]]] = {}
        notes = []
        # The longest file comes first, so that parts of it are left out; JSON comes before CSV.
        order = sorted(files, key=lambda path: (-len(files[path]), path.lower().endswith(".csv")))
        for path in order:
            found = files[path]
            images = folder.find_images(found, near=path)
            if images is None:
                return Recognized(what=what, problem=describe_missing(path, names=[*found]))
            others = known.setdefault(images.folder, {})
            for name, regions in found.items():
                other, same = others.setdefault(name, (path, regions))
                if regions != same:
                    problem = f"{other} and {path} differ about {name}: name the right one"
                    return Recognized(what=what, problem=f"{problem} (--annotations FILE)")
            owners = {others[name][0] for name in found}
            if path not in owners:
                notes.append(f"{path} says what {', '.join(sorted(owners))} says, and is not read")
                continue
            split = split_in(path) or split_in(images.folder)
            keys = sources.setdefault(split, {"images": folder.uri(images.folder)})
            if keys["images"] != folder.uri(images.folder):
                problem = f"images of one split are in {keys['images']} and {images.folder}"
                return Recognized(what=what, problem=problem)
            keys.setdefault("annotations", []).append(folder.uri(path))
            if images.match != "path":
                keys["match"] = images.match
        if "" in sources and len(sources) > 1:
            problem = "some of the files name a split and others do not"
            return Recognized(what=what, problem=problem)
        heads = (folder.head(path) for path in files)
        outlines = any(b"polygon" in head or b"ellipse" in head for head in heads)
        return Recognized(
            what=what, sources=dict(sorted(sources.items())), notes=notes, outlines=outlines
        )

    @functools.cached_property
    def kinds(self) -> frozenset[Kind]:
        """Objects, and masks if these are wanted."""
        return frozenset({Kind.DETECTION, *({Kind.INSTANCE_MASKS} if self._masks else ())})

    def resolve(self) -> ViaFormat:
        """Finds the attribute that is the class.

        Raises:
            InputError: A file cannot be read.
            Problem: No region has a class, or several attributes may be it.
        """
        files = {
            name: count_attributes(read_via_file(uri, storage=storage_for(uri)))
            for name, uri in zip(short_names(self.annotations), self.annotations, strict=True)
        }
        attribute = find_class_attribute(
            files, given=self.label_attribute, class_name=self.class_name
        )
        return msgspec.structs.replace(self, _attribute=attribute)

    def annotation_files(self) -> Sequence[str]:
        """Returns the JSON and CSV files."""
        return self.annotations

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses one file, image by image; an image without regions has no entry."""
        uri = self.annotations[file_index]
        file_name = short_names(self.annotations)[file_index]
        found: dict[str, None] = {}
        lost: dict[str, dict[str, int]] = {}
        for image in read_via_file(uri, storage=storage):
            if not image.regions and not image.problem:
                continue
            key = normalize_key(image.name)
            problem = key_problem(key)
            entry = AnnotationEntry(
                key=key if problem is None else escape_key(key) or escape_key(image.place),
                file_index=file_index,
                position=image.position,
                origin=f"{file_name}: {escape_key(image.place)}",
            )
            detail = f"{image.place}: {problem}" if problem else image.problem
            if not detail:
                try:
                    annotations = read_regions(
                        image.regions,
                        attribute=self._attribute,
                        class_name=self.class_name,
                        wants_masks=self._masks,
                    )
                except ValueError as error:
                    detail = f"{image.place}: {error}"
            if detail:
                yield msgspec.structs.replace(
                    entry,
                    defect=Reason.UNREADABLE_NAME if problem else Reason.ANNOTATION_MALFORMED,
                    detail=escape_key(f"{file_name}: {detail}"),
                )
                continue
            if image.lone_surrogates:
                count = {Correction.LONE_SURROGATE_REPLACED.value: image.lone_surrogates}
                annotations = msgspec.structs.replace(
                    annotations, corrections={**annotations.corrections, **count}
                )
            for item in annotations.objects:
                check_class_name(item.label, uri=uri)
                found[item.label] = None
            for name, shapes in annotations.lost.items():
                lost.setdefault(name, {}).update(shapes)
            yield msgspec.structs.replace(entry, annotations=encode_annotations(annotations))
        for name in found:
            yield Category(name=name, origin=uri)
        yield from lost_classes(lost, origin=uri)


def _sniff(folder: Folder, path: str) -> Mapping[str, object]:
    """Returns the annotated images of a file and their regions; nothing if it is not one of VIA."""
    head = folder.head(path)
    if b"region_shape_attributes" not in head and not (b"filename" in head and b"regions" in head):
        return {}
    uri = folder.location(path)
    try:
        return {
            image.name: msgspec.to_builtins(image.regions)
            for image in read_via_file(uri, storage=storage_for(uri))
        }
    except InputError:
        return {}

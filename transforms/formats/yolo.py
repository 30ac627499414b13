"""YOLO: a text file of boxes or polygons an image, and a file that names the classes.

The format: https://docs.ultralytics.com/datasets/detect/ and
https://docs.ultralytics.com/datasets/segment/.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.schema import PredefinedSplits
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    encode_annotations,
)
from shardbeam.transforms.formats.annotation_file import text_lines
from shardbeam.transforms.formats.base import Format, Kind, Place, Role
from shardbeam.transforms.formats.names import is_hidden, is_image_name, normalize_key
from shardbeam.transforms.formats.root_files import read_file
from shardbeam.transforms.formats.split_lists import split_entry
from shardbeam.transforms.formats.yolo_labels import parse_yolo_labels
from shardbeam.transforms.formats.yolo_layout import (
    YoloLayout,
    find_layout,
    is_labels,
    join_of_image,
    join_of_labels,
    listed_path,
)
from shardbeam.transforms.storage.base import Storage

if TYPE_CHECKING:
    from typing_extensions import Self


class YoloFormat(Format, frozen=True, kw_only=True):
    """YOLO: `images/` and `labels/`, with `data.yaml` or `classes.txt`.

    Class 0 of the files has the id 1: to readers of the TF Object Detection API 0 is the
    background.

    Attributes:
        root: The folder of `images/` and `labels/`; by default that of `data`.
        data: The `data.yaml`, Darknet's `obj.data`, or a file with a class name a line; by default
            the one in the root.
        splits: Which of the predefined splits are used; by default all.
        _masks: Whether objects carry their polygons.
        _layout: What `resolve` has found.
    """

    SUMMARY = "YOLO text files: boxes and segments"
    ROOTS = ("root",)
    CHOOSES_SPLITS = True
    lists_annotations = True

    root: Annotated[Location, named("folder of images/ and labels/", metavar="DIR")] | None = None
    data: Annotated[Location, named("data.yaml; by default the one in the root")] | None = None
    splits: PredefinedSplits | None = None
    _masks: bool = False
    _layout: YoloLayout = YoloLayout()

    def __post_init__(self) -> None:
        self.check_some("root", "data")

    @property
    def kinds(self) -> frozenset[Kind]:
        """Objects, and their masks if they are asked for."""
        return frozenset({Kind.DETECTION, Kind.INSTANCE_MASKS} if self._masks else {Kind.DETECTION})

    @functools.cached_property
    def _names(self) -> Mapping[int, str]:
        return dict(self._layout.names)

    @functools.cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(map(normalize_key, self._layout.known))

    @functools.cached_property
    def _split_folders(self) -> Mapping[str, str]:
        """`{folder of images: split}`."""
        return {normalize_key(folder.path): folder.split for folder in self._layout.folders}

    @functools.cached_property
    def _label_folders(self) -> Mapping[str, str]:
        """`{folder of labels: split}`."""
        return {
            join_of_image(f"{folder}/").rstrip("/"): split
            for folder, split in self._split_folders.items()
        }

    def roots(self) -> tuple[str, ...]:
        """The root, which by default is the folder of `data`."""
        return (self.root or (self.data or "").rpartition("/")[0] or "/",)

    def resolve(self) -> Self:
        """Finds classes, splits and labels; see the base class.

        Raises:
            InputError: As for `find_layout`.
        """
        layout = find_layout(root=self.roots()[0], data=self.data, splits=self.splits)
        return msgspec.structs.replace(self, _layout=layout)

    def predefined_splits(self) -> Sequence[str]:
        """The splits that the `data.yaml` names, or folders named like splits.

        Raises:
            InputError: They cannot be found.
        """
        if self._layout.problem is not None:
            uri, place, problem = self._layout.problem
            raise InputError(uri=uri, place=place, problem=problem)
        return self._layout.splits

    def place(self, path: str, *, root: int) -> Place:
        """Tells images and labels by folders and extensions; see the base class."""
        del root
        key = normalize_key(path)
        if key in self._known:
            return Place(role=Role.OTHER)
        if is_labels(key, beside=self._layout.beside):
            return Place(role=Role.ANNOTATION, join=join_of_labels(key))
        if is_image_name(key) and not is_hidden(key):
            return Place(role=Role.IMAGE, key=key, join=join_of_image(key))
        return Place(role=Role.IMAGE, key=key, join=key)

    def split_listed(self, key: str) -> str:
        """The split whose folder holds an image; see the base class."""
        return _split_of(key, folders=self._split_folders)

    def annotation_files(self) -> Sequence[str]:
        """The files that name the classes, then the lists of the splits."""
        return [*self._layout.files, *(item.file.uri for item in self._layout.lists)]

    def read_annotations(
        self, *, storage: Storage, file_index: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Declares the classes, or says which images a list puts into its split."""
        del storage
        if file_index == 0:
            for class_index, name in self._layout.names:
                yield Category(name=name, source_id=class_index + 1, origin=self._layout.files[0])
        if file_index < len(self._layout.files):
            return
        item = self._layout.lists[file_index - len(self._layout.files)]
        for line, name in text_lines(read_file(item.file), uri=item.file.uri):
            yield split_entry(
                join_of_image(normalize_key(listed_path(name, item=item))),
                split=item.split,
                path=item.path,
                line=line,
                file_index=file_index,
            )

    def read_listed(self, data: bytes, *, path: str, root: int) -> Iterator[AnnotationEntry]:
        """Parses the labels of one image; see the base class.

        Raises:
            InputError: It is no file of labels.
        """
        del root
        objects, corrections = parse_yolo_labels(data, names=self._names, uri=path)
        if not self._masks:
            objects = [msgspec.structs.replace(item, segmentation=b"") for item in objects]
        key = join_of_labels(normalize_key(path))
        annotations = ImageAnnotations(
            image_id="", objects=tuple(objects), corrections=corrections, normalized=True
        )
        yield AnnotationEntry(
            key=key,
            annotations=encode_annotations(annotations),
            # Two files about one image are not to be added up.
            image_id=path,
            split=_split_of(key, folders=self._label_folders),
        )


def _split_of(path: str, *, folders: Mapping[str, str]) -> str:
    return next(
        (split for folder, split in folders.items() if not folder or path.startswith(f"{folder}/")),
        "",
    )

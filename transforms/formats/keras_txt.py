"""keras-yolo3's text files: a line for each image, with its boxes.

The format: `path x1,y1,x2,y2,class x1,y1,x2,y2,class …`, with corners in pixels and the number of
the class (https://github.com/qqwweee/keras-yolo3#training). Roboflow exports it as
`_annotations.txt`, beside the images and `_classes.txt`.
"""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Iterator, Sequence
from typing import Annotated

import msgspec

from shardbeam.configs.keys import Location, named
from shardbeam.configs.problem import Problem
from shardbeam.transforms.core.box_formats import BoxReading
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Correction
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    Category,
    ImageAnnotations,
    ObjectAnnotation,
    encode_annotations,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.formats.base import Format, Kind, Match
from shardbeam.transforms.formats.names import is_image_name
from shardbeam.transforms.formats.parsing.lines import binary_problem, read_lines
from shardbeam.transforms.formats.parsing.root_files import (
    TableRoots,
    find_file,
    read_file,
    require_file,
    short_names,
)
from shardbeam.transforms.formats.parsing.table_columns import CellError
from shardbeam.transforms.formats.recognition import Folder, Recognized, Sources, split_in
from shardbeam.transforms.formats.table.rows import key_of_image
from shardbeam.transforms.formats.yolo.data_file import parse_names
from shardbeam.transforms.storage.base import Storage, join_uri
from shardbeam.transforms.storage.find import storage_for

_NUMBER = r"[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]{1,3})?"
_BOX = re.compile(rf"({_NUMBER}),({_NUMBER}),({_NUMBER}),({_NUMBER}),([0-9]{{1,9}})", re.ASCII)
_BLANKS = re.compile(r"([ \t]+)")
# A corner further out is no pixel.
_MOST_PX = float(2**31)
# The files that name the classes, beside the annotations; and the folder of others.
_NAMES_FILES = ("_classes.txt", "classes.txt")
_NAMES_FOLDER = "model_data"
# Lines that show what a file is.
_LINES = 50


class KerasTxtFormat(Format, frozen=True, kw_only=True):
    """keras-yolo3: `path x1,y1,x2,y2,class …` on each line.

    Class 0 of the files gets the id 1, because 0 is the background to readers of the TF Object
    Detection API.

    Attributes:
        images: The folder that the paths of images begin in.
        annotations: The files of lines.
        classes: The file of class names; by default the one beside the annotations.
        _names: The names of the classes; `resolve` finds them.
        _names_file: The file that names them.
    """

    SUMMARY = "keras-yolo3 text files: a line per image, with its boxes"
    # Often each of several files names its own part of one folder's images.
    FILES = ("annotations",)
    UNANNOTATED = "drop"
    kinds = frozenset({Kind.DETECTION})
    first_pixel = 0.0
    box_reading = BoxReading()
    chunk_bytes = 32 << 20

    images: Annotated[Location, named("folder that the paths of images begin in", metavar="DIR")]
    annotations: Annotated[
        list[Location], msgspec.Meta(min_length=1), named("file with a line per image")
    ]
    classes: (
        Annotated[
            Location,
            named("file with a class name per line (default: the one beside the annotations)"),
        ]
        | None
    ) = None
    match: Match = "path"
    _names: tuple[str, ...] = ()
    _names_file: str = ""

    @classmethod
    def recognize(cls, folder: Folder) -> Recognized | None:
        """Recognizes files whose first lines name images and boxes."""
        # Roboflow's name counts among many files, too: those of YOLO may be beside it.
        paths = dict.fromkeys([*folder.few(".txt"), *folder.named("_annotations.txt")])
        named_images = {path: names for path in paths if (names := _first_names(folder.head(path)))}
        if not named_images:
            return None
        what = counted(len(named_images), "annotation file")
        sources = Sources(folder, what=what)
        for path, names in named_images.items():
            images = sources.find_images(path, names)
            if (split := split_in(path)) in sources.by_split:
                other = sources.by_split[split]["annotations"]
                problem = f"{path} and {other} are of one split; name those to read in a config"
                return Recognized(what=what, problem=problem)
            sources.add(path, images, split=split)
        return Recognized(what=what, sources=sources.by_split)

    def resolve(self) -> KerasTxtFormat:
        """Finds the names of the classes.

        Raises:
            InputError: No file names them, or a file is missing or cannot be used.
            Problem: Several files name different classes.
        """
        for uri in self.annotations:
            require_file(uri)
        found = [self.classes] if self.classes else list(self._find_names_files())
        named = {uri: parse_names(read_file(require_file(uri)), uri=uri) for uri in found}
        if not named:
            raise InputError(
                uri=self.annotations[0],
                problem=f"no file names the classes: looked for {' and '.join(_NAMES_FILES)} "
                f"beside it, and *_classes.txt there and in {_NAMES_FOLDER}/; write a file with a "
                "class name per line, and name it with `classes`",
            )
        first = next(iter(named))
        for uri, names in named.items():
            if names != named[first]:
                raise Problem(
                    ("classes",),
                    f"{first} and {uri} name different classes: name the one that is right",
                )
        return msgspec.structs.replace(self, _names=tuple(named[first].values()), _names_file=first)

    def _find_names_files(self) -> Iterator[str]:
        for folder in dict.fromkeys(uri.rpartition("/")[0] for uri in self.annotations):
            uris = [join_uri(folder, name) for name in _NAMES_FILES]
            uris = [uri for uri in uris if find_file(uri) is not None]
            for other in () if uris else (folder, join_uri(folder, _NAMES_FOLDER)):
                storage = storage_for(other)
                names = sorted(
                    name for name in storage.names(other) if name.endswith("_classes.txt")
                )
                uris += [join_uri(other, name) for name in names]
            yield from uris

    @functools.cached_property
    def _roots(self) -> TableRoots:
        return TableRoots([self.images])

    def read_chunk(
        self, *, storage: Storage, file_index: int, begin: int, end: int
    ) -> Iterator[AnnotationEntry | Category]:
        """Parses the lines of a part of a file; the first part of all declares the classes.

        Raises:
            InputError: The file cannot be read, or is not text.
        """
        uri = self.annotations[file_index]
        name = short_names(self.annotations)[file_index]
        if file_index == begin == 0:
            for source_id, label in enumerate(self._names, 1):
                yield Category(name=label, source_id=source_id, origin=self._names_file)
        for position, line in read_lines(uri, storage=storage, begin=begin, end=end):
            if not line or line.isspace():
                continue
            if position == 0 and (problem := binary_problem(line)):
                raise InputError(uri=uri, problem=problem)
            key = place = f"{name}: byte {position}"
            try:
                # Bytes that are not UTF-8 make a name that no image has.
                path, words = split_line(line.decode("utf-8", "surrogateescape"))
                key = key_of_image(path, roots=self._roots, match=self.match)
                annotations = encode_annotations(self._annotations(words))
            except CellError as error:
                yield AnnotationEntry(
                    key=error.key or key,
                    file_index=file_index,
                    position=position,
                    defect=error.reason,
                    detail=f"{place}: {error}",
                )
                continue
            yield AnnotationEntry(
                key=key, annotations=annotations, file_index=file_index, position=position
            )

    def _annotations(self, words: Sequence[str]) -> ImageAnnotations:
        objects = []
        for word in words:
            match = _BOX.fullmatch(word)
            if match is None:
                raise CellError(f"expected x1,y1,x2,y2,class, got {word[:60]!a}")
            xmin, ymin, xmax, ymax = map(float, match.groups()[:4])
            if not max(map(abs, (xmin, ymin, xmax, ymax))) < _MOST_PX:
                raise CellError(f"expected pixels, got {word[:60]!a}")
            if int(match[5]) >= len(self._names):
                known = f"{self._names_file.rpartition('/')[2]} names {len(self._names)} classes"
                raise CellError(f"{known}, from 0 up, and none for {word[:60]!a}")
            label = self._names[int(match[5])]
            objects.append(ObjectAnnotation(label=label, bbox=(xmin, ymin, xmax, ymax)))
        return self.reconcile(ImageAnnotations(image_id="", objects=tuple(objects)))

    def reconcile(self, annotations: ImageAnnotations) -> ImageAnnotations:
        """Leaves out boxes that a line, or another line of the image, repeats."""
        corrections = Corrections(annotations.corrections, annotations.changes, annotations.lost)
        objects: dict[object, ObjectAnnotation] = {}
        for item in annotations.objects:
            if objects.setdefault((item.label, item.bbox), item) is not item:
                corrections.note(Correction.DUPLICATE_ANNOTATION_DROPPED, [item.label, *item.bbox])
        return msgspec.structs.replace(
            annotations, objects=tuple(objects.values()), **corrections.fields()
        )


def split_line(text: str) -> tuple[str, list[str]]:
    r"""Splits a line into the path of its image, with `/` for `\`, and the words of its boxes.

    A path may hold blanks. It ends with the last name of an image before the first good box.

    Raises:
        CellError: The line names no image.
    """
    # Words and the blanks between them.
    parts = _BLANKS.split(text.strip())
    words = range(0, len(parts), 2)
    first_box = next((at for at in words if _BOX.fullmatch(parts[at])), len(parts))
    for end in reversed(words[: first_box // 2 + first_box % 2]):
        if is_image_name(parts[end]):
            return "".join(parts[: end + 1]).replace("\\", "/"), parts[end + 2 :: 2]
    raise CellError(
        f"expected path x1,y1,x2,y2,class … with the name of an image, got {text[:60]!a}"
    )


def _first_names(head: bytes) -> list[str]:
    """Returns the names of images in a file's first lines; none if most have another form."""
    lines = head.decode("utf-8", "surrogateescape").split("\n")
    # The last one may be cut off.
    lines = [line for line in lines[:-1] or lines if line.strip()][:_LINES]
    names: list[str] = []
    boxes = 0
    for line in lines:
        with contextlib.suppress(CellError):
            path, words = split_line(line)
            if all(map(_BOX.fullmatch, words)):
                names.append(path)
                boxes += len(words)
    return names if boxes and 2 * len(names) > len(lines) else []

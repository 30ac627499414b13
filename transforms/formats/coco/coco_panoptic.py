"""COCO's panoptic segments: their JSON file, and the names of their PNGs.

The format: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

import difflib
import itertools
import posixpath
from collections.abc import Iterator, Sequence

import msgspec

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.corrections import Corrections
from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import Category, ImageAnnotations, Segment
from shardbeam.transforms.formats.annotation_file import decode_json
from shardbeam.transforms.formats.coco.coco_file import CocoFile, CocoImage, Int64
from shardbeam.transforms.formats.coco.sniff import sniff_png_names
from shardbeam.transforms.formats.names import normalize_key, without_extension
from shardbeam.transforms.formats.parsing.root_files import RootFiles
from shardbeam.transforms.storage.find import storage_for

# PNGs that are looked for at launch.
_SAMPLE = 5


class PngNames(msgspec.Struct, frozen=True):
    """How the names of panoptic PNGs differ from those of their images.

    Cityscapes, for example, has `a_gtFine_panoptic.png` for `a_leftImg8bit.png`.

    Attributes:
        image_start: Beginning of an image's path, where a PNG's path begins with `png_start`.
        png_start: The beginning that `image_start` replaces.
        image_end: Ending of an image's path without extension, where a PNG's ends with `png_end`.
        png_end: The ending that `image_end` replaces.
    """

    image_start: str = ""
    png_start: str = ""
    image_end: str = ""
    png_end: str = ""

    def join_of(self, png: str) -> str:
        """Returns the text that a PNG and its image are joined by."""
        stem = without_extension(normalize_key(png))
        core = stem.removeprefix(self.png_start).removesuffix(self.png_end)
        if f"{self.png_start}{core}{self.png_end}" != stem:
            return stem
        return f"{self.image_start}{core}{self.image_end}"


def find_png_names(uri: str, *, masks: str) -> PngNames:
    """Finds out from the first images of a panoptic file how their PNGs are named.

    Args:
        uri: The JSON file.
        masks: The folder of the PNGs.

    Raises:
        InputError: The file cannot be read, its PNGs are not in the folder, or their names do not
            follow from those of their images.
    """
    pairs = sniff_png_names(uri, storage=storage_for(uri))
    files = RootFiles(masks)
    first = [png for _, png in pairs[:_SAMPLE]]
    if first and not any(files.find(normalize_key(png)) for png in first):
        listed = sorted(path for path, _ in itertools.islice(files.walk(), 10_000))
        below = next((path for path in listed if path.endswith(f"/{first[0]}")), "")
        hint = f"; add /{below.removesuffix(f'/{first[0]}')} to it" if below else ""
        raise InputError(
            uri=uri,
            place="$.annotations",
            problem=f"the PNGs that it names are not in panoptic_masks: it names {first[0]!r}, the "
            f"folder holds {repr(listed[0]) if listed else 'no file'}{hint}",
        )
    stems = [(without_extension(normalize_key(image)), png) for image, png in pairs]
    misfits = stems[:1]
    for names in _compare(*stems[0]) if stems else [PngNames()]:
        misfits = [(stem, png) for stem, png in stems if names.join_of(png) != stem]
        if not misfits:
            return names
    raise InputError(
        uri=uri,
        place="$.annotations",
        problem=f"the PNG of {misfits[0][0]!r} is {misfits[0][1]!r}, unlike {stems[0][1]!r} of "
        f"{stems[0][0]!r}: all PNGs must differ from the names of their images in the same way; "
        "rename them",
    )


def _compare(image: str, png: str) -> Iterator[PngNames]:
    """Yields ways in which names of images and PNGs may differ, judged by the parts they share."""
    png = without_extension(normalize_key(png))
    shared = len(posixpath.commonprefix([image[::-1], png[::-1]]))
    yield PngNames(image[: len(image) - shared], png[: len(png) - shared])
    shared = len(posixpath.commonprefix([image, png]))
    yield PngNames("", "", image[shared:], png[shared:])
    match = difflib.SequenceMatcher(None, image, png, autojunk=False).find_longest_match()
    yield PngNames(
        image[: match.a],
        png[: match.b],
        image[match.a + match.size :],
        png[match.b + match.size :],
    )


class _Segment(msgspec.Struct, gc=False):
    id: Int64
    category_id: Int64 | None = None
    iscrowd: bool | int | None = None


class _Annotation(msgspec.Struct, gc=False):
    file_name: str
    segments_info: list[_Segment]


class _Named(msgspec.Struct, gc=False):
    file_name: str = ""


# Some tools write ids as texts.
_annotation_decoder = JsonDecoder(_Annotation, strict=False)
_named_decoder = JsonDecoder(_Named)


class PanopticReader:
    """Reads the segments of a file's images; the join adds the PNGs.

    Raises:
        InputError: The file is not a file of panoptic segments.
    """

    def __init__(self, file: CocoFile[CocoImage], *, names: PngNames) -> None:
        file.require("annotations", "categories")
        self._file = file
        self._names = names
        for index, text in enumerate(file.annotations):
            place = f"$.annotations[{index}]"
            if not decode_json(text, decoder=_named_decoder, uri=file.uri, place=place).file_name:
                raise InputError(
                    uri=file.uri,
                    place=place,
                    problem="expected file_name and segments_info; is this a file of panoptic "
                    "segments?",
                )

    def annotate(self, image: CocoImage, rows: Sequence[int]) -> ImageAnnotations:
        """Reads the segments of one image from the first of its annotations (`rows`)."""
        found = ImageAnnotations(
            image_id=str(image.id), width=int(image.width or 0), height=int(image.height or 0)
        )
        if not rows:
            return found
        annotation = self._file.decode(rows[0], decoder=_annotation_decoder)
        png = annotation.file_name
        if self._names.join_of(png) != without_extension(normalize_key(image.file_name)):
            raise RejectedError(
                Reason.MASK_UNREADABLE,
                f"$.annotations[{rows[0]}].file_name: {png!r} is not named like its image "
                f"{image.file_name!r}, as the first PNGs are",
            )
        corrections = Corrections({Correction.DUPLICATE_ANNOTATION_DROPPED.value: len(rows) - 1})
        segments: dict[int, Segment] = {}
        for item in annotation.segments_info:
            label = self._file.names.get(item.category_id)
            if label is None:
                corrections.note(Correction.REGION_OF_UNKNOWN_CLASS_VOID, item.category_id)
            elif item.id in segments:
                corrections.note(Correction.DUPLICATE_SEGMENT_DROPPED, item.id)
            else:
                segments[item.id] = Segment(
                    segment_id=item.id, label=label, is_crowd=bool(item.iscrowd)
                )
        return msgspec.structs.replace(
            found, segments=tuple(segments.values()), **corrections.fields()
        )

    def categories(self) -> Iterator[Category]:
        """Declares each category once."""
        for category in self._file.categories.values():
            yield Category(
                name=category.name,
                source_id=category.id,
                origin=self._file.uri,
                is_thing=category.isthing is None or bool(category.isthing),
                is_background=self._file.is_dummy(category),
            )

"""Panoptic segments: a COCO JSON file, and a folder of PNGs that it names.

The format: https://cocodataset.org/#format-data (panoptic segmentation).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from shardbeam.transforms.core.errors import InputError, RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import (
    Category,
    ImageAnnotations,
    ImageRef,
    MaskRole,
    Segment,
)
from shardbeam.transforms.formats.coco_file import CocoFile, CocoImage, Int64
from shardbeam.transforms.formats.names import normalize_key


class _Segment(msgspec.Struct, gc=False):
    id: Int64
    category_id: Int64 | None = None
    iscrowd: bool | int | None = None


class _Annotation(msgspec.Struct, gc=False):
    file_name: str
    segments_info: list[_Segment]


class _Named(msgspec.Struct, gc=False):
    file_name: str = ""


_annotation_decoder = msgspec.json.Decoder(_Annotation)
_named_decoder = msgspec.json.Decoder(_Named)


class PanopticReader:
    """Reads the segments of a file's images, whose PNGs are as `list_keys` gives them.

    Raises:
        InputError: It is no file of panoptic segments, or names none of the PNGs.
    """

    def __init__(self, file: CocoFile[CocoImage], *, masks: Mapping[str, ImageRef]) -> None:
        file.require("annotations", "categories")
        self._file = file
        self._masks = masks
        names = []
        for index in range(len(file.annotations)):
            names.append(file.decode(index, decoder=_named_decoder).file_name)
            if not names[-1]:
                raise InputError(
                    uri=file.uri,
                    place=f"$.annotations[{index}]",
                    problem="expected file_name and segments_info; is this a file of panoptic "
                    "segments?",
                )
        if names and not any(normalize_key(name) in masks for name in names):
            listed = min(masks, default="")
            below = min((path for path in masks if path.endswith(f"/{names[0]}")), default="")
            hint = f"; add /{below.removesuffix(f'/{names[0]}')} to it" if below else ""
            raise InputError(
                uri=file.uri,
                place="$.annotations",
                problem=f"none of the {len(names)} PNGs that it names is in panoptic_masks: it "
                f"names {names[0]!r}, the folder holds {repr(listed) if listed else 'no file'}"
                f"{hint}",
            )

    def annotate(self, image: CocoImage, rows: Sequence[int]) -> ImageAnnotations:
        """Reads the segments of one image: those of the first of its annotations (`rows`)."""
        found = ImageAnnotations(
            image_id=str(image.id), width=int(image.width or 0), height=int(image.height or 0)
        )
        if not rows:
            return found
        annotation = self._file.decode(rows[0], decoder=_annotation_decoder)
        mask = self._masks.get(normalize_key(annotation.file_name))
        if mask is None:
            raise RejectedError(
                Reason.MASK_UNREADABLE,
                f"$.annotations[{rows[0]}].file_name: there is no {annotation.file_name!r} in "
                "panoptic_masks",
            )
        corrections = Counter({Correction.DUPLICATE_ANNOTATION_DROPPED.value: len(rows) - 1})
        segments: dict[int, Segment] = {}
        for item in annotation.segments_info:
            label = self._file.names.get(item.category_id)
            if label is None:
                corrections[Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED.value] += 1
            elif item.id in segments:
                corrections[Correction.DUPLICATE_SEGMENT_DROPPED.value] += 1
            else:
                segments[item.id] = Segment(
                    segment_id=item.id, label=label, is_crowd=bool(item.iscrowd)
                )
        return msgspec.structs.replace(
            found,
            segments=tuple(segments.values()),
            masks={MaskRole.PANOPTIC: mask},
            corrections=dict(sorted((+corrections).items())),
        )

    def categories(self) -> Iterator[Category]:
        """Declares each category once."""
        for category in self._file.categories.values():
            yield Category(
                name=category.name,
                source_id=category.id,
                origin=self._file.uri,
                is_thing=category.isthing is None or bool(category.isthing),
            )

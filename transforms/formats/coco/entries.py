"""Makes an entry for each image of a COCO file, with the annotations that name it."""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence

import msgspec
import numpy as np

from shardbeam.configs.decoding import JsonDecoder
from shardbeam.transforms.core.errors import InputError, RejectedError, UnreadableError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.core.records import AnnotationEntry, ImageAnnotations, encode_annotations
from shardbeam.transforms.formats.coco.coco_file import CocoFile, CocoImage, ImageId, ImageT
from shardbeam.transforms.formats.names import escape_key, key_problem

# Numbers as they are written; longer ones are no ids that are numbers.
_DECIMAL = re.compile(r"0|-?[1-9][0-9]{0,18}", re.ASCII)


class _Owner(msgspec.Struct, gc=False):
    image_id: ImageId


# Some tools write ids as `1.0`.
_owner_decoder = JsonDecoder(_Owner, strict=False)


def read_entries(
    file: CocoFile[ImageT],
    annotate: Callable[[ImageT, Sequence[int]], ImageAnnotations],
    *,
    key_of: Callable[[ImageT], str],
    join_of: Callable[[str], str],
    file_index: int,
) -> Iterator[AnnotationEntry]:
    """Makes an entry for each image, and for each image id that only annotations name.

    Image ids are compared as text. If images share an id, none of them can be used, unless they
    are one image, with one name and one size; then the first has the annotations.

    Args:
        file: The file.
        annotate: Reads the annotations of an image, given by their positions. It is called
            for every image id, whether the image can be used or not. An `InputError` or
            `RejectedError` becomes the defect of the image's entry.
        key_of: Finds the image's key.
        join_of: Finds the text that a key is joined by.
        file_index: Number of the file among the source's annotation files.

    Raises:
        InputError: An annotation has no image id; or the file has changed meanwhile.
    """
    # Details are written into the dataset, which must not depend on the input's folder.
    name = file.uri.rpartition("/")[2]
    owners = _Owners(file.images)
    found = array("i")
    for _, _, item in file.decode_all("annotations", _owner_decoder):
        found.append(owners[item.image_id])
    rows = _Rows(found, number=len(owners.firsts) + len(owners.unlisted))
    firsts, unlisted = owners.firsts, owners.unlisted
    del owners

    twins = _find_twins(file, firsts, key_of=key_of)
    for position, image in enumerate(file.images):
        key = key_of(image)
        problem = key_problem(key)
        own = rows[position]
        said, malformed = _annotations_or_defect(annotate, image, own)
        if said is not None and file.lone_surrogates:
            said = _add_surrogates(file, said, position)
        if said is not None and firsts[position] != position:
            repeated = {**said.corrections, Correction.ENTRIES_MERGED.value: 1}
            said = msgspec.structs.replace(said, corrections=repeated)
        defect = malformed
        if problem is not None:
            detail = f"$.images[{position}]: file_name: {problem}"
            defect = RejectedError(Reason.UNREADABLE_NAME, detail)
        elif position in twins:
            defect = _shared_id(file, position, twins[position])
        yield AnnotationEntry(
            key=join_of(key) if problem is None else escape_key(key) or _id_key(str(image.id)),
            file_index=file_index,
            position=position,
            image_id=str(image.id),
            annotations=b"" if said is None or defect else encode_annotations(said),
            defect=None if defect is None else defect.reason,
            detail=f"{name}: {defect.detail}" if defect else "",
        )
    for position, image_id in enumerate(unlisted, len(file.images)):
        own = rows[position]
        # These annotations, too, show what kind of file it is.
        _annotations_or_defect(annotate, file.image_type(id=image_id, file_name=""), own)
        yield AnnotationEntry(
            key=_id_key(image_id),
            file_index=file_index,
            position=position,
            image_id=image_id,
            defect=Reason.UNKNOWN_IMAGE_ID,
            detail=f"{name}: $.annotations[{own[0]}]: `images` lists no image id {image_id}, "
            f"which {len(own)} annotations name",
        )


def _add_surrogates(
    file: CocoFile[ImageT], found: ImageAnnotations, position: int
) -> ImageAnnotations:
    """Adds the lone surrogates in the image's own entry and in the names of its classes."""
    labels = [item.label for item in (*found.objects, *found.stuff)]
    labels += [segment.label for segment in found.segments]
    texts: list[int | str] = [position, *found.labels, *labels]
    corrections = Counter(found.corrections)
    corrections[Correction.LONE_SURROGATE_REPLACED.value] += sum(
        file.lone_surrogates.get(text, 0) for text in texts
    )
    return msgspec.structs.replace(found, corrections=dict(sorted((+corrections).items())))


def _find_twins(
    file: CocoFile[ImageT], firsts: Sequence[int], *, key_of: Callable[[ImageT], str]
) -> dict[int, int]:
    """Finds images that share their id with another image, of another name or size.

    Returns:
        `{position of an image: position of another one with its id}`
    """
    groups: dict[int, list[int]] = {}
    for position, first in enumerate(firsts):
        if first != position:
            groups.setdefault(first, [first]).append(position)
    twins: dict[int, int] = {}
    for positions in groups.values():
        images = [file.images[position] for position in positions]
        names = set(map(key_of, images))
        # An unknown size contradicts none.
        sizes = {(each.width, each.height) for each in images if each.width and each.height}
        if max(len(names), len(sizes)) > 1:
            twins.update(zip(positions, [*positions[1:], positions[0]], strict=True))
    return twins


def _shared_id(file: CocoFile[ImageT], position: int, twin: int) -> RejectedError:
    image, other = file.images[position], file.images[twin]
    return RejectedError(
        Reason.DUPLICATE_IMAGE_ID,
        f"$.images[{position}]: {other.file_name!r} ($.images[{twin}]) has the image id "
        f"{image.id}, too, and nobody knows whose its annotations are: give each image its own "
        "id",
    )


class _Owners(dict[ImageId, int]):
    """`{image id: position of the first image that has it}`; ids are compared as text.

    Ids that only annotations name get positions after those of the images.

    Attributes:
        firsts: The position of the first image with the same id, for each image.
        unlisted: The ids that only annotations name.
    """

    def __init__(self, images: Iterable[CocoImage]) -> None:
        super().__init__()
        self.unlisted: list[str] = []
        self.firsts = array("i")
        for position, image in enumerate(images):
            self.firsts.append(self.setdefault(_comparable(image.id), position))

    def __missing__(self, image_id: ImageId) -> int:
        comparable = _comparable(image_id)
        if comparable not in self:
            self[comparable] = len(self.firsts) + len(self.unlisted)
            self.unlisted.append(str(image_id))
        # A text may be written like a number.
        owner = self[image_id] = self[comparable]
        return owner


def _comparable(image_id: ImageId) -> ImageId:
    """Returns one value for ids whose texts are equal, such as 7 and "7"."""
    is_number = isinstance(image_id, str) and _DECIMAL.fullmatch(image_id)
    return int(image_id) if is_number else image_id


class _Rows:
    """The positions of each image's annotations.

    Args:
        owners: The position of the image of each annotation.
        number: Number of images.
    """

    def __init__(self, owners: array[int], *, number: int) -> None:
        found = np.asarray(owners, np.int32)
        self._rows = np.argsort(found, kind="stable").astype(np.int32)
        self._ends = np.cumsum(np.bincount(found, minlength=number))

    def __getitem__(self, position: int) -> list[int]:
        begin = self._ends[position - 1] if position else 0
        rows: list[int] = self._rows[begin : self._ends[position]].tolist()
        return rows


def _annotations_or_defect(
    annotate: Callable[[ImageT, Sequence[int]], ImageAnnotations],
    image: ImageT,
    rows: Sequence[int],
) -> tuple[ImageAnnotations | None, RejectedError | None]:
    try:
        return annotate(image, rows), None
    except RejectedError as error:
        return None, error
    except UnreadableError:
        raise
    except InputError as error:
        detail = f"{error.place}: {error.problem}"
        return None, RejectedError(Reason.ANNOTATION_MALFORMED, detail)


def _id_key(image_id: str) -> str:
    return f"image_id={escape_key(image_id)}"

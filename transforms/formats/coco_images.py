"""The `images` of a COCO file, and an entry for each of them.

The format: https://cocodataset.org/#format-data.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Generic, NamedTuple, TypeVar

import msgspec

from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.records import AnnotationEntry, ImageAnnotations, encode_annotations
from shardbeam.transforms.formats.names import escape_key, key_problem

# Crowd annotations have ids beyond int32.
Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
ImageId = Int64 | str
_Pixels = (
    Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    | Annotated[float, msgspec.Meta(ge=0, le=2**31 - 1, multiple_of=1)]
)


class CocoImage(msgspec.Struct, gc=False):
    """An entry of `images`, as it is there.

    Attributes:
        id: Its id.
        file_name: Its path relative to some root.
        width: Width in pixels.
        height: Height in pixels.
    """

    id: ImageId
    file_name: str
    width: _Pixels | None = None
    height: _Pixels | None = None

    def annotated(self) -> ImageAnnotations:
        """Id and size, without anything said about the image."""
        return ImageAnnotations(
            image_id=str(self.id), width=int(self.width or 0), height=int(self.height or 0)
        )


ImageT = TypeVar("ImageT", bound=CocoImage)


class UnlistedImage(NamedTuple):
    """An image id that annotations name and `images` does not list.

    Attributes:
        first: Position in `annotations` of the first that names it.
        annotations: How many name it.
    """

    first: int
    annotations: int


class UnusableImage(NamedTuple):
    """What is wrong with the annotations of one image.

    Attributes:
        reason: The reason code.
        detail: The place in the file, and the problem.
    """

    reason: Reason
    detail: str


class ImageTable(Generic[ImageT]):
    """The entries of `images`, and which annotations belong to which.

    Images are identified by their position in `images`; image ids are compared as text.

    Attributes:
        images: The entries.
        annotation_counts: How many annotations each image has, unusable ones included.
        unlisted: Image ids that only annotations name, in order of appearance.
    """

    def __init__(self, images: Sequence[ImageT]) -> None:
        self.images = images
        self.annotation_counts = [0] * len(images)
        self.unlisted: dict[str, UnlistedImage] = {}
        # {image id: position of the first entry with it}
        self._positions: dict[str, int] = {}
        for position, image in enumerate(images):
            self._positions.setdefault(str(image.id), position)

    def count_annotation(self, image_id: ImageId, index: int) -> int | None:
        """Counts an annotation.

        Args:
            image_id: The image that it names.
            index: Its position in `annotations`.

        Returns:
            The image's position; None where there is no such image.
        """
        text = str(image_id)
        owner = self._positions.get(text)
        if owner is None:
            first, count = self.unlisted.get(text, (index, 0))
            self.unlisted[text] = UnlistedImage(first=first, annotations=count + 1)
            return None
        self.annotation_counts[owner] += 1
        return owner

    def entries(
        self,
        found: Iterable[ImageAnnotations | UnusableImage],
        *,
        key_of: Callable[[ImageT], str],
        join_of: Callable[[str], str],
        name: str,
        file_index: int,
    ) -> Iterator[AnnotationEntry]:
        """Makes an entry for each image.

        Args:
            found: What is said about each, in order.
            key_of: Finds the image's key.
            join_of: Finds what a key is joined by.
            name: The file, for details.
            file_index: Which of the source's files it is.

        Yields:
            An entry for each of `images`, and one with the defect `UNKNOWN_IMAGE_ID` for each
            id that is not among them.
        """
        # {key: position of the image that keeps it}
        keys: dict[str, int] = {}
        for position, (image, said) in enumerate(zip(self.images, found, strict=True)):
            key = key_of(image)
            unusable = self._unusable(position, key=key, keys=keys)
            if unusable is None:
                keys[key] = position
                if isinstance(said, UnusableImage):
                    unusable = said
            yield AnnotationEntry(
                key=join_of(key)
                if key_problem(key) is None
                else escape_key(key) or _id_key(str(image.id)),
                annotations=encode_annotations(said)
                if isinstance(said, ImageAnnotations) and unusable is None
                else b"",
                file_index=file_index,
                position=position,
                image_id=str(image.id),
                defect=None if unusable is None else unusable.reason,
                detail="" if unusable is None else f"{name}: {unusable.detail}",
            )
        yield from self._unlisted_entries(name=name, file_index=file_index)

    def _unusable(
        self, position: int, *, key: str, keys: Mapping[str, int]
    ) -> UnusableImage | None:
        image_id = str(self.images[position].id)
        place = f"$.images[{position}]"
        unreadable = key_problem(key)
        if unreadable is not None:
            return UnusableImage(Reason.UNREADABLE_NAME, f"{place}: file_name: {unreadable}")
        first = self._positions[image_id]
        if first != position:
            return UnusableImage(
                Reason.DUPLICATE_IMAGE_ID,
                f"{place}: image id {image_id} is $.images[{first}]'s, and its annotations with it",
            )
        if key in keys:
            return UnusableImage(
                Reason.DUPLICATE_KEY,
                f"{place}: image id {image_id} has the file_name of image id "
                f"{self.images[keys[key]].id} ($.images[{keys[key]}]); its "
                f"{self.annotation_counts[position]} annotations are left out",
            )
        return None

    def _unlisted_entries(self, *, name: str, file_index: int) -> Iterator[AnnotationEntry]:
        for position, (image_id, unlisted) in enumerate(self.unlisted.items(), len(self.images)):
            yield AnnotationEntry(
                key=_id_key(image_id),
                annotations=b"",
                file_index=file_index,
                position=position,
                image_id=image_id,
                defect=Reason.UNKNOWN_IMAGE_ID,
                detail=f"{name}: $.annotations[{unlisted.first}]: `images` lists no image id "
                f"{image_id}, which {unlisted.annotations} annotations name",
            )


def _id_key(image_id: str) -> str:
    return f"image_id={escape_key(image_id)}"

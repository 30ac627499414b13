"""ListImages: which images there are, and what is listed beside them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PBegin, PCollection

from shardbeam.transforms.coders import register_coders
from shardbeam.transforms.core.records import (
    AnnotationEntry,
    ImageRef,
    ListedFile,
    ListedImage,
    Reject,
)
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.base import Role
from shardbeam.transforms.formats.sources import (
    PlacedFile,
    Source,
    begin_part,
    expand_roots,
    list_files,
    list_part,
    mask_entry,
)
from shardbeam.transforms.report_usage import report_usage
from shardbeam.transforms.storage.archives import is_pattern
from shardbeam.transforms.storage.base import ListingPart
from shardbeam.transforms.storage.find import storage_for

register_coders()

_MASKS = "masks"
_FILES = "files"
_OTHERS = "others"
_REJECTS = "rejects"
_PARTS = "parts"


# (source, which of its roots, what is left of its listing)
_Part: TypeAlias = tuple[Source, int, ListingPart]


class ListResult(NamedTuple):
    """What `ListImages` gives.

    Attributes:
        images: `((source, join), ListedImage)` for each listed image, `join` being what it has
            in common with its annotations.
        masks: `((source, join), AnnotationEntry)` for each listed mask.
        files: A `ListedFile` for each listed annotation file and container: what
            `ReadAnnotations` is to read.
        others: An `ImageRef` for each mask, annotation file, attached file and container.
        rejects: A `Reject` for each file whose name cannot be a key.
    """

    images: PCollection[tuple[tuple[str, str], ListedImage]]
    masks: PCollection[tuple[tuple[str, str], AnnotationEntry]]
    files: PCollection[ListedFile]
    others: PCollection[ImageRef]
    rejects: PCollection[Reject]


@dataclasses.dataclass(eq=False, kw_only=True)
class ListImages(beam.PTransform[PBegin, ListResult]):
    """Lists every file below the sources' roots, whatever it is: the join decides.

    A long listing of object storage is left to all workers, in 16 parts and then in 16 of each.

    Args:
        sources: The sources.
        splits: Which split a reject belongs to.
        spread: Whether parts of a long listing are left to other workers.

    Raises:
        InputError: (at run time) A root cannot be listed, or holds no file.
    """

    sources: Sequence[Source]
    splits: SplitAssignment
    spread: bool = True

    def expand(self, pbegin: PBegin) -> ListResult:
        """Adds the step to a pipeline."""
        # (source, which of its roots, folder or archive)
        roots = (
            pbegin
            | "Sources" >> beam.Create(list(self.sources), reshuffle=False)
            | "ExpandRoots"
            >> beam.FlatMap(_expand_roots).with_output_types(tuple[Source, tuple[int, str]])
        )
        if any(is_pattern(root) for source in self.sources for root in source.roots):
            roots = roots | "SpreadRoots" >> beam.Reshuffle()
        listed = roots | "List" >> beam.ParDo(
            _ListFn(splits=self.splits, spread=self.spread)
        ).with_outputs(_MASKS, _FILES, _OTHERS, _REJECTS, _PARTS, main="images")
        begun = _typed(listed)
        # On disk nothing is left over, and a stage less is worth something in a short run.
        if not self.spread or not any(
            storage_for(root).is_remote for source in self.sources for root in source.roots
        ):
            return begun
        listed[_PARTS].element_type = _Part
        # One worker leaves 16 parts at most, and one of these may be a tenth of all: too much for
        # one worker, of a hundred million. So they are divided once more.
        divided = (
            listed[_PARTS]
            | "SpreadParts" >> beam.Reshuffle()
            | "DividePart"
            >> beam.ParDo(_ListPartFn(begin_part, splits=self.splits)).with_outputs(
                _MASKS, _FILES, _OTHERS, _REJECTS, _PARTS, main="images"
            )
        )
        divided[_PARTS].element_type = _Part
        rest = (
            divided[_PARTS]
            | "SpreadSmallParts" >> beam.Reshuffle()
            | "ListPart"
            >> beam.ParDo(_ListPartFn(list_part, splits=self.splits)).with_outputs(
                _MASKS, _FILES, _OTHERS, _REJECTS, main="images"
            )
        )
        return ListResult(
            *(
                each | f"Flatten{name.capitalize()}" >> beam.Flatten()
                for name, each in zip(
                    ListResult._fields,
                    zip(begun, _typed(divided), _typed(rest), strict=True),
                    strict=True,
                )
            )
        )


def _typed(outputs: Any) -> ListResult:  # noqa: ANN401  # Beam does not export the type.
    outputs[_MASKS].element_type = tuple[tuple[str, str], AnnotationEntry]
    outputs[_FILES].element_type = ListedFile
    outputs[_OTHERS].element_type = ImageRef
    return ListResult(
        images=outputs.images,
        masks=outputs[_MASKS],
        files=outputs[_FILES],
        others=outputs[_OTHERS],
        rejects=outputs[_REJECTS],
    )


def _expand_roots(source: Source) -> Iterator[tuple[Source, tuple[int, str]]]:
    for root in expand_roots(source):
        yield source, root


_Output: TypeAlias = "tuple[tuple[str, str], ListedImage] | pvalue.TaggedOutput[str, Any]"


@beam.typehints.with_output_types(tuple[tuple[str, str], ListedImage])
class _ListFn(beam.DoFn):
    def __init__(self, *, splits: SplitAssignment, spread: bool) -> None:
        self._splits = splits
        self._spread = spread

    def process(self, element: tuple[Source, tuple[int, str]]) -> Iterator[_Output]:
        source, (root, uri) = element
        for listed in list_files(source, root=root, uri=uri, splits=self._splits):
            if isinstance(listed, ListingPart) and not self._spread:
                for each in list_part(source, listed, root=root, splits=self._splits):
                    yield from _outputs(each, source=source, root=root)
            else:
                yield from _outputs(listed, source=source, root=root)
        report_usage()


@beam.typehints.with_output_types(tuple[tuple[str, str], ListedImage])
class _ListPartFn(beam.DoFn):
    def __init__(
        self,
        list_one: Callable[..., Iterator[PlacedFile | Reject | ListingPart]],
        *,
        splits: SplitAssignment,
    ) -> None:
        self._list_one = list_one
        self._splits = splits

    def process(self, element: _Part) -> Iterator[_Output]:
        source, root, part = element
        for listed in self._list_one(source, part, root=root, splits=self._splits):
            yield from _outputs(listed, source=source, root=root)
        report_usage()


def _outputs(
    listed: PlacedFile | Reject | ListingPart, *, source: Source, root: int
) -> Iterator[_Output]:
    if isinstance(listed, ListingPart):
        yield pvalue.TaggedOutput(_PARTS, (source, root, listed))
        return
    if isinstance(listed, Reject):
        yield pvalue.TaggedOutput(_REJECTS, listed)
        return
    place = listed.place
    if place.role is Role.IMAGE:
        image = ListedImage(key=place.key, image=listed.file)
        yield (source.name, place.join), image
        return
    if place.role is Role.OTHER:
        return
    yield pvalue.TaggedOutput(_OTHERS, listed.file)
    if place.role is Role.ATTACHED:
        return
    if place.role is Role.MASK:
        entry = mask_entry(place, file=listed.file)
        yield pvalue.TaggedOutput(_MASKS, ((source.name, place.join), entry))
    else:
        file = ListedFile(
            source=source.name,
            path=listed.path,
            root=root,
            file=listed.file,
            join=place.join,
            is_container=place.role is Role.CONTAINER,
        )
        yield pvalue.TaggedOutput(_FILES, file)

"""ListImages: which images there are."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PBegin, PCollection

from transforms.coders import register_coders
from transforms.records import ImageRef, Reject
from transforms.sharding import SplitAssignment
from transforms.sources import Source, list_source

register_coders()

_REJECTS = "rejects"


class ListResult(NamedTuple):
    """What `ListImages` gives.

    Attributes:
        images: `((source, key), ImageRef)` for each listed file.
        rejects: A `Reject` for each file whose name cannot be a key.
    """

    images: PCollection[tuple[tuple[str, str], ImageRef]]
    rejects: PCollection[Reject]


@dataclasses.dataclass(eq=False, kw_only=True)
class ListImages(beam.PTransform[PBegin, ListResult]):
    """Lists every file below the sources' image roots, whatever it is: the join decides.

    Args:
        sources: The sources.
        splits: Which split a reject belongs to.

    Raises:
        InputError: (at run time) A root cannot be listed, or holds no file.
    """

    sources: Sequence[Source]
    splits: SplitAssignment

    def expand(self, pbegin: PBegin) -> ListResult:
        """Adds the step to a pipeline."""
        listed = (
            pbegin
            | "Sources" >> beam.Create(list(self.sources), reshuffle=False)
            | "List"
            >> beam.ParDo(_ListFn(splits=self.splits)).with_outputs(_REJECTS, main="images")
        )
        return ListResult(images=listed.images, rejects=listed[_REJECTS])


@beam.typehints.with_output_types(tuple[tuple[str, str], ImageRef])
class _ListFn(beam.DoFn):
    def __init__(self, *, splits: SplitAssignment) -> None:
        self._splits = splits

    def process(
        self, source: Source
    ) -> Iterator[tuple[tuple[str, str], ImageRef] | pvalue.TaggedOutput[str, Reject]]:
        for listed in list_source(source, splits=self._splits):
            if isinstance(listed, Reject):
                yield pvalue.TaggedOutput(_REJECTS, listed)
            else:
                key, image = listed
                yield (source.name, key), image

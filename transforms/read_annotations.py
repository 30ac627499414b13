"""ReadAnnotations: what the annotation files say."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PBegin, PCollection

from transforms.coders import register_coders
from transforms.records import AnnotationEntry, Category
from transforms.sources import Source
from transforms.storage import storage_for

register_coders()

_CATEGORIES = "categories"


class ReadResult(NamedTuple):
    """What `ReadAnnotations` gives.

    Attributes:
        entries: `((source, key), AnnotationEntry)` for each image that a file names.
        categories: Each `Category` that a file declares.
    """

    entries: PCollection[tuple[tuple[str, str], AnnotationEntry]]
    categories: PCollection[Category]


@dataclasses.dataclass(eq=False, kw_only=True)
class ReadAnnotations(beam.PTransform[PBegin, ReadResult]):
    """Parses the sources' annotation files, each in one worker.

    Args:
        sources: The sources.

    Raises:
        InputError: (at run time) A file cannot be read, or is not what it should be.
    """

    sources: Sequence[Source]

    def expand(self, pbegin: PBegin) -> ReadResult:
        """Adds the step to a pipeline."""
        files = [
            (source, file_index)
            for source in self.sources
            for file_index in range(len(source.load_format().annotation_files()))
        ]
        read = (
            pbegin
            | "Files" >> beam.Create(files)
            | "Read" >> beam.ParDo(_ReadFn()).with_outputs(_CATEGORIES, main="entries")
        )
        read[_CATEGORIES].element_type = Category
        return ReadResult(entries=read.entries, categories=read[_CATEGORIES])


@beam.typehints.with_output_types(tuple[tuple[str, str], AnnotationEntry])
class _ReadFn(beam.DoFn):
    def process(
        self, element: tuple[Source, int]
    ) -> Iterator[tuple[tuple[str, str], AnnotationEntry] | pvalue.TaggedOutput[str, Category]]:
        source, file_index = element
        source_format = source.load_format()
        uri = source_format.annotation_files()[file_index]
        for item in source_format.read_annotations(storage=storage_for(uri), file_index=file_index):
            if isinstance(item, Category):
                yield pvalue.TaggedOutput(_CATEGORIES, item)
            else:
                yield (source.name, item.key), item

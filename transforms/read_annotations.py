"""ReadAnnotations: what is said about the images."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import in_global_window, report_usage
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, Category, ListedFile, ListedImage
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.census import Census
from shardbeam.transforms.formats.sources import Source, read_listed_file
from shardbeam.transforms.storage.find import storage_for

_IMAGES = "images"
_CENSUS = "census"
_FILES_AT_A_TIME = 32
_WAITING_FILES = 1024
# A container may be one image's annotations with its picture; of a larger one, what is found is
# given bit by bit.
_SMALL_CONTAINER_BYTES = 8 << 20

_Entry: TypeAlias = tuple[tuple[str, str], AnnotationEntry]
_Image: TypeAlias = tuple[tuple[str, str], ListedImage]
# (source, which of its annotation files, where to begin, where to end); the last two are 0 where
# the file is read whole.
_Part: TypeAlias = tuple[str, int, int, int]
_Item: TypeAlias = AnnotationEntry | Category | ListedImage


class ReadResult(NamedTuple):
    """What `ReadAnnotations` gives.

    Attributes:
        entries: `((source, join), AnnotationEntry)` for all that is said about an image.
        images: `((source, join), ListedImage)` for each image inside a container.
        census: A `Census` for each bundle: the classes that files declare, and the images of
            containers by split.
    """

    entries: PCollection[_Entry]
    images: PCollection[_Image]
    census: PCollection[Census]


@dataclasses.dataclass(eq=False, kw_only=True)
class ReadAnnotations(beam.PTransform[PCollection[ListedFile], ReadResult]):
    """Parses the annotation files that sources name, and those that were listed.

    A named file is read by one worker, unless its format reads it in parts; listed files, which
    are about an image or a container each, are read by all.

    Args:
        sources: What is read.
        splits: Finds the split of an image inside a container.

    Raises:
        InputError: (at run time) A named file or a container cannot be read, or is not what it
            should be.
    """

    sources: Sequence[Source]
    splits: SplitAssignment

    def expand(self, files: PCollection[ListedFile]) -> ReadResult:
        """Adds the step to a pipeline."""
        formats = [source.format for source in self.sources]
        named = [
            (source.name, file_index, 0, 0)
            for source, source_format in zip(self.sources, formats, strict=True)
            for file_index in range(len(source_format.annotation_files()))
        ]
        sources = {source.name: source for source in self.sources}
        parts = files.pipeline | "Files" >> beam.Create(named).with_output_types(_Part)
        if any(source_format.chunk_bytes for source_format in formats):
            parts = (
                parts
                | "SplitFiles" >> beam.FlatMap(_split_file, sources).with_output_types(_Part)
                | "SpreadParts" >> beam.Reshuffle()
            )
        read = _typed(parts | "Read" >> _with_outputs(_ReadFn(sources, self.splits)))
        if not any(source_format.lists_annotations for source_format in formats):
            return read
        spread = files | "SpreadFiles" >> beam.Reshuffle()
        rest = _typed(spread | "ReadListed" >> _with_outputs(_ReadListedFn(sources, self.splits)))
        return ReadResult(
            *(
                (one, other) | f"Flatten{name.capitalize()}" >> beam.Flatten()
                for name, one, other in zip(ReadResult._fields, read, rest, strict=True)
            )
        )


def _with_outputs(do_fn: beam.DoFn) -> Any:  # noqa: ANN401  # Beam does not export the type.
    return beam.ParDo(do_fn).with_outputs(_IMAGES, _CENSUS, main="entries")


def _typed(outputs: Any) -> ReadResult:  # noqa: ANN401  # As above.
    outputs[_IMAGES].element_type = _Image
    outputs[_CENSUS].element_type = Census
    return ReadResult(entries=outputs.entries, images=outputs[_IMAGES], census=outputs[_CENSUS])


def _split_file(part: _Part, sources: Mapping[str, Source]) -> Iterator[_Part]:
    name, file_index, _, _ = part
    source_format = sources[name].format
    if source_format.chunk_bytes is None:
        yield part
        return
    uri = source_format.annotation_files()[file_index]
    stored = storage_for(uri).stat(uri)
    if stored is None:
        raise InputError(uri=uri, problem="there is no such file")
    # An empty file is one part as well: its format says what is wrong with it.
    for begin in range(0, max(1, stored.size_bytes), source_format.chunk_bytes):
        end = min(begin + source_format.chunk_bytes, stored.size_bytes)
        yield name, file_index, begin, end


@beam.typehints.with_output_types(_Entry)
@dataclasses.dataclass(eq=False)
class _GiveItemsFn(beam.DoFn):
    """Gives what formats find, each kind by its output."""

    sources: Mapping[str, Source]
    splits: SplitAssignment

    def start_bundle(self) -> None:
        self._census = Census()

    def finish_bundle(self) -> Iterator[Any]:
        yield in_global_window(pvalue.TaggedOutput(_CENSUS, self._census))
        report_usage()

    def _outputs(
        self, items: Iterable[_Item], *, source: str
    ) -> Iterator[_Entry | pvalue.TaggedOutput[str, Any]]:
        for item in items:
            if isinstance(item, Category):
                self._census.add_category(item)
            elif isinstance(item, ListedImage):
                # Of a container, the listing holds the file; what it holds is counted here.
                split = self.splits.split_of(source=source, key=item.key)
                self._census.listing.add_images(1, split=split)
                yield pvalue.TaggedOutput(_IMAGES, ((source, item.key), item))
            else:
                yield (source, item.key), item


class _ReadFn(_GiveItemsFn):
    """Reads files that sources name, whole or in parts."""

    def process(self, part: _Part) -> Iterator[_Entry | pvalue.TaggedOutput[str, Any]]:
        source, file_index, begin, end = part
        source_format = self.sources[source].format
        uri = source_format.annotation_files()[file_index]
        storage = storage_for(uri)
        if source_format.chunk_bytes is None:
            items = source_format.read_annotations(storage=storage, file_index=file_index)
        else:
            items = source_format.read_chunk(
                storage=storage, file_index=file_index, begin=begin, end=end
            )
        yield from self._outputs(items, source=source)


class _ReadListedFn(_GiveItemsFn):
    """Reads listed files; those in object storage, which are small, many at a time."""

    def setup(self) -> None:
        # Its threads start when they are needed.
        self._executor = ThreadPoolExecutor(
            max_workers=_FILES_AT_A_TIME, thread_name_prefix="annotations"
        )

    def teardown(self) -> None:
        self._executor.shutdown(cancel_futures=True)

    def start_bundle(self) -> None:
        super().start_bundle()
        self._waiting: list[ListedFile] = []

    def process(self, file: ListedFile) -> Iterator[_Entry | pvalue.TaggedOutput[str, Any]]:
        is_large = file.is_container and file.file.size_bytes > _SMALL_CONTAINER_BYTES
        if is_large or not storage_for(file.file.uri).is_remote:
            yield from self._outputs(self._read(file), source=file.source)
            return
        self._waiting.append(file)
        if len(self._waiting) == _WAITING_FILES:
            yield from self._read_waiting()

    def finish_bundle(self) -> Iterator[Any]:
        yield from map(in_global_window, self._read_waiting())
        yield from super().finish_bundle()

    def _read_waiting(self) -> Iterator[_Entry | pvalue.TaggedOutput[str, Any]]:
        files, self._waiting = self._waiting, []
        read = self._executor.map(lambda file: list(self._read(file)), files)
        for file, items in zip(files, read, strict=True):
            yield from self._outputs(items, source=file.source)

    def _read(self, file: ListedFile) -> Iterator[_Item]:
        return read_listed_file(file, source_format=self.sources[file.source].format)

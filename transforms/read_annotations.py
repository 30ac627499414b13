"""ReadAnnotations: reads annotation files and containers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.beam.stages import (
    COUNTS,
    MAIN,
    CountingFn,
    add_step,
    flatten,
    in_global_window,
)
from shardbeam.transforms.core.counters import BlockCount, counters
from shardbeam.transforms.core.counts import ENTRIES, FILES, IMAGES, encode_element
from shardbeam.transforms.core.records import AnnotationEntry, Category, ListedFile, ListedImage
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.formats.join.sources import (
    FilePart,
    Source,
    encode_join_value,
    list_annotation_files,
    read_listed_file,
)
from shardbeam.transforms.storage.find import storage_for

_FILES_AT_A_TIME = 32
_WAITING_FILES = 1024
# The items of a small container fit into memory, so many small ones are read at a time. Items of a
# larger one are sent on as they are found.
_SMALL_CONTAINER_BYTES = 8 << 20

# (source and join key, value), as `formats.join.values` encodes them
_JoinValue: TypeAlias = tuple[bytes, bytes]
_Item: TypeAlias = AnnotationEntry | Category | ListedImage


class ReadResult(NamedTuple):
    """The result of `ReadAnnotations`.

    Attributes:
        values: `(source and join key, value)` for each annotation entry and each image inside a
            container: the input of `JoinAnnotations`.
        counts: One PCollection for each step, with the counts of each bundle: the declared classes,
            and the images of containers by split.
    """

    values: tuple[PCollection[_JoinValue], ...]
    counts: tuple[PCollection[InputCounts], ...]


@dataclasses.dataclass(eq=False, kw_only=True)
class ReadAnnotations(beam.PTransform[tuple[PCollection[ListedFile], ...], ReadResult]):
    """Parses annotation files and containers, those that sources name and those that are listed.

    One worker reads a named file, unless its format reads it in parts. All workers share the
    listed files.

    Args:
        sources: The sources.
        splits: Finds the split of an image inside a container.

    Raises:
        InputError: (at run time) A named file or a container cannot be read, or is not in its
            format.
    """

    sources: Sequence[Source]
    splits: SplitAssignment

    def expand(self, files: tuple[PCollection[ListedFile], ...]) -> ReadResult:
        """Adds the steps that the formats need to a pipeline."""
        formats = [source.format for source in self.sources]
        sources = {source.name: source for source in self.sources}
        named = list_annotation_files(self.sources)
        values: tuple[PCollection[_JoinValue], ...] = ()
        counts: tuple[PCollection[InputCounts], ...] = ()
        if named:
            pipeline = files[0].pipeline
            parts = pipeline | "Files" >> beam.Create(named).with_output_types(FilePart)
            if any(source_format.chunk_bytes for source_format in formats):
                divided = add_step("SplitFiles", _SplitFn(sources), parts)
                parts = divided[MAIN] | "SpreadParts" >> beam.Reshuffle()
                counts = (divided[COUNTS],)
            read = add_step("Read", _ReadFn(sources, self.splits), parts)
            values += (read[MAIN],)
            counts += (read[COUNTS],)
        if any(source_format.lists_annotations for source_format in formats):
            spread = flatten(*files) | "SpreadFiles" >> beam.Reshuffle()
            read = add_step("ReadListed", _ReadListedFn(sources, self.splits), spread)
            values += (read[MAIN],)
            counts += (read[COUNTS],)
        return ReadResult(values, counts)


@beam.typehints.with_output_types(FilePart)
@dataclasses.dataclass(eq=False)
class _SplitFn(CountingFn):
    """Divides files that can be read in parts."""

    sources: Mapping[str, Source]

    def process(self, file: FilePart) -> Iterator[FilePart]:
        self.counts.receive(FILES, encode_element(file))
        for part in _split_file(file, self.sources):
            self.counts.send(FILES, encode_element(part))
            yield part


def _split_file(part: FilePart, sources: Mapping[str, Source]) -> Iterator[FilePart]:
    name, file_index, _, _ = part
    source_format = sources[name].format
    if source_format.chunk_bytes is None:
        yield part
        return
    uri = source_format.annotation_files()[file_index]
    stored = storage_for(uri).find(uri)
    # An empty file is one part, too, so that its format reports it.
    for begin in range(0, max(1, stored.size_bytes), source_format.chunk_bytes):
        end = min(begin + source_format.chunk_bytes, stored.size_bytes)
        yield name, file_index, begin, end


@beam.typehints.with_output_types(_JoinValue)
@dataclasses.dataclass(eq=False)
class _GiveItemsFn(CountingFn):
    """Sends on the items that formats find, and counts them."""

    sources: Mapping[str, Source]
    splits: SplitAssignment

    def start_bundle(self) -> None:
        super().start_bundle()
        self._entries = BlockCount(counters.entries)

    def finish_bundle(self) -> Iterator[Any]:
        self._entries.flush()
        yield from super().finish_bundle()

    def _outputs(self, items: Iterable[_Item], *, source: Source) -> Iterator[_JoinValue]:
        for item in items:
            if isinstance(item, Category):
                self.inputs.classes.add_category(item)
                continue
            what = ENTRIES
            if isinstance(item, ListedImage):
                what = IMAGES
                # The listing has only counted the container, so its images are counted here.
                split = self.splits.split_of(source=source.name, key=item.key)
                self.inputs.listing.add_images(1, split=split)
            else:
                self._entries.add()
            value = encode_join_value(item, name=item.key, what=what, source=source)
            self.counts.send(what, *value)
            yield value


class _ReadFn(_GiveItemsFn):
    """Reads named files, whole or in parts."""

    def process(self, part: FilePart) -> Iterator[_JoinValue]:
        self.counts.receive(FILES, encode_element(part))
        name, file_index, begin, end = part
        source = self.sources[name]
        source_format = source.format
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
    """Reads listed files; in object storage, many small ones at the same time."""

    def setup(self) -> None:
        # The threads start when they are needed.
        self._executor = ThreadPoolExecutor(
            max_workers=_FILES_AT_A_TIME, thread_name_prefix="annotations"
        )

    def teardown(self) -> None:
        self._executor.shutdown(cancel_futures=True)

    def start_bundle(self) -> None:
        super().start_bundle()
        self._waiting: list[ListedFile] = []

    def process(self, file: ListedFile) -> Iterator[_JoinValue]:
        self.counts.receive(FILES, encode_element(file))
        is_large = file.is_container and file.file.size_bytes > _SMALL_CONTAINER_BYTES
        if is_large or not storage_for(file.file.uri).is_remote:
            yield from self._outputs(self._read(file), source=self.sources[file.source])
            return
        self._waiting.append(file)
        if len(self._waiting) == _WAITING_FILES:
            yield from self._read_waiting()

    def finish_bundle(self) -> Iterator[Any]:
        yield from map(in_global_window, self._read_waiting())
        yield from super().finish_bundle()

    def _read_waiting(self) -> Iterator[_JoinValue]:
        files, self._waiting = self._waiting, []
        read = self._executor.map(lambda file: list(self._read(file)), files)
        for file, items in zip(files, read, strict=True):
            yield from self._outputs(items, source=self.sources[file.source])

    def _read(self, file: ListedFile) -> Iterator[_Item]:
        yield from read_listed_file(file, source_format=self.sources[file.source].format)
        counters.annotation_files.add()

"""ListImages: lists the images and the files beside them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PBegin, PCollection

from shardbeam.transforms.beam.stages import COUNTS, MAIN, CountingFn, GiveRecordsFn, add_step
from shardbeam.transforms.core.counters import counters
from shardbeam.transforms.core.counts import (
    FILES,
    FOLDERS,
    IMAGES,
    MASKS,
    RECORDS,
    REJECTS,
    Count,
    encode_element,
)
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, ListedFile, ListedImage, Reject
from shardbeam.transforms.dataset.input_counts import InputCounts, fingerprint_file
from shardbeam.transforms.formats.base import Role
from shardbeam.transforms.formats.join.join import join_entries
from shardbeam.transforms.formats.join.sources import (
    JoinSettings,
    Root,
    Source,
    encode_join_value,
    is_plain,
    list_files,
    list_roots,
    needs_join,
)
from shardbeam.transforms.storage.archives.open import expand_root, is_pattern
from shardbeam.transforms.storage.base import ListingPart
from shardbeam.transforms.storage.find import storage_for

_FILES = "files"
_PARTS = "parts"

# (source, number of its root, the rest of its listing)
_Part: TypeAlias = tuple[str, int, ListingPart]
# (source and join key, value), as `formats.join.values` encodes them
_JoinValue: TypeAlias = tuple[bytes, bytes]


class ListResult(NamedTuple):
    """The outputs of each of `ListImages`'s steps.

    Attributes:
        values: `(source and join key, value)` for each listed image and mask: the input of
            `JoinAnnotations`.
        records: A `Record` for each image that needs no join, in batches
            (`dataset.record_batches`). There are no such outputs if every source is joined.
        files: A `ListedFile` for each listed annotation file and container: the input of
            `ReadAnnotations`.
        rejects: A `Reject` for each file whose name cannot be a key, and for each image that needs
            no join and cannot be used.
        counts: The counts of each bundle: the images by split, and the fingerprints of all listed
            files.
    """

    values: tuple[PCollection[_JoinValue], ...]
    records: tuple[PCollection[bytes], ...]
    files: tuple[PCollection[ListedFile], ...]
    rejects: tuple[PCollection[Reject], ...]
    counts: tuple[PCollection[InputCounts], ...]


@dataclasses.dataclass(eq=False, kw_only=True)
class ListImages(beam.PTransform[PBegin, ListResult]):
    """Lists every file below the sources' roots; the join decides what becomes of each.

    The record of an image that needs no join (`formats.join.sources.needs_join`) is made here. All
    workers share a long listing of object storage, in parts of whole folders.

    Args:
        sources: The sources.
        settings: The config's settings of the join.
        makes_records: Whether to make these records, or to leave all images to the join.

    Raises:
        InputError: (at run time) A root cannot be listed, or holds no file; or a worker has
            another version of Shardbeam than the launcher.
    """

    sources: Sequence[Source]
    settings: JoinSettings
    makes_records: bool = True

    def expand(self, pbegin: PBegin) -> ListResult:
        """Adds the step to a pipeline."""
        listed_roots = list_roots(self.sources)
        roots = pbegin | "Roots" >> beam.Create(listed_roots, reshuffle=False).with_output_types(
            Root
        )
        counts: tuple[PCollection[InputCounts], ...] = ()
        if any(is_pattern(root) for _, _, root in listed_roots):
            expanded = add_step("ExpandPatterns", _ExpandFn(), roots)
            roots = expanded[MAIN] | "SpreadRoots" >> beam.Reshuffle()
            counts = (expanded[COUNTS],)
        unjoined = frozenset(
            source.name
            for source in self.sources
            if self.makes_records and not needs_join(source.format, settings=self.settings)
        )
        list_fn = _ListFn(sources=self.sources, settings=self.settings, unjoined=unjoined)
        types = {RECORDS: bytes, _FILES: ListedFile, REJECTS: Reject, _PARTS: _Part}
        listed = [add_step("List", list_fn, roots, types=types)]
        # Local listings are never split; short runs are faster without the step.
        if any(storage_for(root).is_remote for _, _, root in listed_roots):
            parts = listed[0][_PARTS] | "SpreadParts" >> beam.Reshuffle()
            listed.append(add_step("ListPart", list_fn, parts, types=types))
        return ListResult(
            values=tuple(outputs[MAIN] for outputs in listed),
            records=tuple(outputs[RECORDS] for outputs in listed if unjoined),
            files=tuple(outputs[_FILES] for outputs in listed),
            rejects=tuple(outputs[REJECTS] for outputs in listed),
            counts=(*counts, *(outputs[COUNTS] for outputs in listed)),
        )


@beam.typehints.with_output_types(Root)
class _ExpandFn(CountingFn):
    """Finds the archives of each pattern."""

    def process(self, element: Root) -> Iterator[Root]:
        self.counts.receive(FOLDERS, encode_element(element))
        source, index, root = element
        for uri in expand_root(root):
            self.counts.send(FOLDERS, encode_element((source, index, uri)))
            yield source, index, uri


@beam.typehints.with_output_types(_JoinValue)
class _ListFn(GiveRecordsFn):
    def __init__(
        self,
        *,
        sources: Sequence[Source],
        settings: JoinSettings,
        unjoined: Collection[str],
    ) -> None:
        super().__init__(settings=settings)
        self._sources = {source.name: source for source in sources}
        self._unjoined = unjoined
        self._version = importlib.metadata.version("shardbeam")

    def setup(self) -> None:
        installed = importlib.metadata.version("shardbeam")
        if installed != self._version:
            raise InputError(
                uri="worker",
                problem=f"it has Shardbeam {installed}, and the launcher has {self._version}; give "
                "both the same, such as by the container image (--sdk_container_image)",
            )

    def finish_bundle(self) -> Iterator[Any]:
        counters.annotation_files.expect(self.counts.sent.get(FILES, Count()).number)
        yield from super().finish_bundle()

    def process(
        self, element: Root | _Part
    ) -> Iterator[_JoinValue | pvalue.TaggedOutput[str, Any]]:
        self.counts.receive(FOLDERS, encode_element(element))
        name, root, where = element
        source = self._sources[name]
        for listed in list_files(source, where, root=root, splits=self.settings.splits):
            if isinstance(listed, ListingPart):
                part = name, root, listed
                self.counts.send(FOLDERS, encode_element(part))
                yield pvalue.TaggedOutput(_PARTS, part)
            elif isinstance(listed, Reject):
                self.inputs.listing.add_images(1, split=listed.split)
                self.inputs.add_reject(listed)
                yield pvalue.TaggedOutput(REJECTS, listed)
            elif listed.place.role is not Role.OTHER:
                self.inputs.listing.add_fingerprint(fingerprint_file(listed.file))
                item = listed.item()
                if isinstance(item, ListedFile):
                    self.counts.send(FILES, encode_element(item))
                    yield pvalue.TaggedOutput(_FILES, item)
                elif item is not None:
                    yield from self._outputs(item, name=listed.place.join, source=source)

    def _outputs(
        self, item: ListedImage | AnnotationEntry, *, name: str, source: Source
    ) -> Iterator[_JoinValue | pvalue.TaggedOutput[str, Any]]:
        what = MASKS
        if isinstance(item, ListedImage):
            what = IMAGES
            split = self.settings.splits.split_of(source=source.name, key=item.key)
            self.inputs.listing.add_images(1, split=split)
            if source.name in self._unjoined and is_plain(item.key):
                joined = join_entries(
                    source=source.name,
                    key=item.key,
                    images=[item],
                    entries=(),
                    source_format=source.format,
                    settings=self.settings,
                )
                yield from self.give(
                    joined, source=source.name, key=item.key, listed=1, referenced=None
                )
                return
        value = encode_join_value(item, name=name, what=what, source=source)
        self.counts.send(what, *value)
        yield value

"""ListImages: lists the images and the files beside them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PBegin, PCollection

from shardbeam.transforms.beam.stages import CENSUS, CensusFn, typed_outputs
from shardbeam.transforms.core.edges import (
    ARCHIVES,
    IMAGES,
    LISTED_FILES,
    LISTING_PARTS,
    MASKS,
    ROOTS,
    encode_element,
)
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import ListedFile, ListedImage, Reject
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.census import Census, fingerprint_file
from shardbeam.transforms.formats.base import Role
from shardbeam.transforms.formats.join_values import encode_join_value
from shardbeam.transforms.formats.sources import Root, Source, list_files, list_roots
from shardbeam.transforms.storage.archives import expand_root, is_pattern
from shardbeam.transforms.storage.base import ListingPart
from shardbeam.transforms.storage.find import storage_for

_VALUES = "values"
_FILES = "files"
_REJECTS = "rejects"
_PARTS = "parts"
_ROOTS = "roots"

# (source, number of its root, the rest of its listing)
_Part: TypeAlias = tuple[str, int, ListingPart]
# (source and join text, value), as `formats.join_values` encodes them
_JoinValue: TypeAlias = tuple[bytes, bytes]


class ListResult(NamedTuple):
    """The result of `ListImages`.

    Attributes:
        values: `(source and join text, value)` for each listed image and mask: the input of
            `JoinAnnotations`.
        files: A `ListedFile` for each listed annotation file and container: the input of
            `ReadAnnotations`.
        rejects: A `Reject` for each file whose name cannot be a key.
        census: One PCollection for each step, with a `Census` of each bundle: the images by split,
            and the fingerprints of all listed files.
    """

    values: PCollection[_JoinValue]
    files: PCollection[ListedFile]
    rejects: PCollection[Reject]
    census: tuple[PCollection[Census], ...]


@dataclasses.dataclass(eq=False, kw_only=True)
class ListImages(beam.PTransform[PBegin, ListResult]):
    """Lists every file below the sources' roots; the join decides what becomes of each.

    All workers share a long listing of object storage, in 16 parts.

    Args:
        sources: The sources.
        splits: Finds the split of an image.

    Raises:
        InputError: (at run time) A root cannot be listed, or holds no file; or a worker has
            another version of Shardbeam than the launcher.
    """

    sources: Sequence[Source]
    splits: SplitAssignment

    def expand(self, pbegin: PBegin) -> ListResult:
        """Adds the step to a pipeline."""
        listed_roots = list_roots(self.sources)
        roots = pbegin | "Roots" >> beam.Create(listed_roots, reshuffle=False).with_output_types(
            Root
        )
        edge = ROOTS
        census: tuple[PCollection[Census], ...] = ()
        if any(is_pattern(root) for _, _, root in listed_roots):
            expand = beam.ParDo(_ExpandFn()).with_outputs(CENSUS, main=_ROOTS)
            expanded = typed_outputs(roots | "ExpandPatterns" >> expand)
            roots = expanded[_ROOTS] | "SpreadRoots" >> beam.Reshuffle()
            edge = ARCHIVES
            census = (expanded[CENSUS],)
        listed = _typed(roots | "List" >> self._list(edge))
        census += (listed[CENSUS],)
        # Local listings are never split; short runs are faster without the step.
        if not any(storage_for(root).is_remote for _, _, root in listed_roots):
            return ListResult(listed[_VALUES], listed[_FILES], listed[_REJECTS], census)
        parts = listed[_PARTS] | "SpreadParts" >> beam.Reshuffle()
        rest = _typed(parts | "ListPart" >> self._list(LISTING_PARTS))
        values, files, rejects = (
            (listed[tag], rest[tag]) | f"Flatten{tag.capitalize()}" >> beam.Flatten()
            for tag in (_VALUES, _FILES, _REJECTS)
        )
        return ListResult(values, files, rejects, (*census, rest[CENSUS]))

    def _list(self, edge: str) -> Any:  # noqa: ANN401  # Beam does not export the type.
        list_fn = _ListFn(sources=self.sources, splits=self.splits, edge=edge)
        return beam.ParDo(list_fn).with_outputs(_FILES, _REJECTS, CENSUS, _PARTS, main=_VALUES)


def _typed(outputs: Any) -> Any:  # noqa: ANN401  # As above.
    return typed_outputs(outputs, files=ListedFile, rejects=Reject, parts=_Part)


@beam.typehints.with_output_types(Root)
class _ExpandFn(CensusFn):
    """Finds the archives of each pattern."""

    def process(self, element: Root) -> Iterator[Root]:
        self.edges.receive(ROOTS, encode_element(element))
        source, index, root = element
        for uri in expand_root(root):
            self.edges.send(ARCHIVES, encode_element((source, index, uri)))
            yield source, index, uri


@beam.typehints.with_output_types(_JoinValue)
class _ListFn(CensusFn):
    def __init__(self, *, sources: Sequence[Source], splits: SplitAssignment, edge: str) -> None:
        self._sources = {source.name: source for source in sources}
        self._splits = splits
        # The edge by which its input arrives.
        self._edge = edge
        self._version = importlib.metadata.version("shardbeam")

    def setup(self) -> None:
        installed = importlib.metadata.version("shardbeam")
        if installed != self._version:
            raise InputError(
                uri="worker",
                problem=f"it has Shardbeam {installed}, and the launcher has {self._version}; give "
                "both the same, such as by the container image (--sdk_container_image)",
            )

    def process(
        self, element: Root | _Part
    ) -> Iterator[_JoinValue | pvalue.TaggedOutput[str, Any]]:
        self.edges.receive(self._edge, encode_element(element))
        name, root, where = element
        source = self._sources[name]
        for listed in list_files(source, where, root=root, splits=self._splits):
            if isinstance(listed, ListingPart):
                part = name, root, listed
                self.edges.send(LISTING_PARTS, encode_element(part))
                yield pvalue.TaggedOutput(_PARTS, part)
            elif isinstance(listed, Reject):
                self.census.listing.add_images(1, split=listed.split)
                self.census.add_reject(listed)
                yield pvalue.TaggedOutput(_REJECTS, listed)
            elif listed.place.role is not Role.OTHER:
                self.census.listing.add_fingerprint(fingerprint_file(listed.file))
                item = listed.item()
                if isinstance(item, ListedFile):
                    self.edges.send(LISTED_FILES, encode_element(item))
                    yield pvalue.TaggedOutput(_FILES, item)
                elif item is not None:
                    edge = MASKS
                    if isinstance(item, ListedImage):
                        edge = IMAGES
                        split = self._splits.split_of(source=name, key=item.key)
                        self.census.listing.add_images(1, split=split)
                    value = encode_join_value(
                        item, text=listed.place.join, edge=edge, source=source
                    )
                    self.edges.send(edge, *value)
                    yield value

"""ListImages: which images there are, and what is listed beside them."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PBegin, PCollection

from shardbeam.transforms.beam.stages import in_global_window, report_usage
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.records import AnnotationEntry, ListedFile, ListedImage, Reject
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.dataset.census import Census, fingerprint_file
from shardbeam.transforms.formats.base import Role
from shardbeam.transforms.formats.sources import Source, list_files
from shardbeam.transforms.storage.archives import expand_root, is_pattern
from shardbeam.transforms.storage.base import ListingPart
from shardbeam.transforms.storage.find import storage_for

_MASKS = "masks"
_FILES = "files"
_REJECTS = "rejects"
_CENSUS = "census"
_PARTS = "parts"

# (source, which of its roots, folder or archive)
_Root: TypeAlias = tuple[str, int, str]
# (source, which of its roots, what is left of its listing)
_Part: TypeAlias = tuple[str, int, ListingPart]
_Image: TypeAlias = tuple[tuple[str, str], ListedImage]
_Mask: TypeAlias = tuple[tuple[str, str], AnnotationEntry]


class ListResult(NamedTuple):
    """What `ListImages` gives.

    Attributes:
        images: `((source, join), ListedImage)` for each listed image, `join` being what it has
            in common with its annotations.
        masks: `((source, join), AnnotationEntry)` for each listed mask.
        files: A `ListedFile` for each listed annotation file and container: what
            `ReadAnnotations` is to read.
        rejects: A `Reject` for each file whose name cannot be a key.
        census: A `Census` for each bundle: the images by split, and the fingerprints of all
            that is listed.
    """

    images: PCollection[_Image]
    masks: PCollection[_Mask]
    files: PCollection[ListedFile]
    rejects: PCollection[Reject]
    census: PCollection[Census]


@dataclasses.dataclass(eq=False, kw_only=True)
class ListImages(beam.PTransform[PBegin, ListResult]):
    """Lists every file below the sources' roots, whatever it is: the join decides.

    A long listing of object storage is left to all workers, in 16 parts.

    Args:
        sources: The sources.
        splits: Which split an image belongs to.

    Raises:
        InputError: (at run time) A root cannot be listed, or holds no file; or a worker has
            another version of Shardbeam than the launcher.
    """

    sources: Sequence[Source]
    splits: SplitAssignment

    def expand(self, pbegin: PBegin) -> ListResult:
        """Adds the step to a pipeline."""
        listed_roots = [
            (source.name, index, root)
            for source in self.sources
            for index, root in enumerate(source.format.roots())
        ]
        roots = pbegin | "Roots" >> beam.Create(listed_roots, reshuffle=False).with_output_types(
            _Root
        )
        if any(is_pattern(root) for _, _, root in listed_roots):
            roots = (
                roots
                | "ExpandPatterns" >> beam.FlatMap(_expand_pattern).with_output_types(_Root)
                | "SpreadRoots" >> beam.Reshuffle()
            )
        listed = roots | "List" >> self._list()
        begun = _typed(listed)
        # On disk nothing is left over, and a stage less is worth something in a short run.
        if not any(storage_for(root).is_remote for _, _, root in listed_roots):
            return begun
        parts = listed[_PARTS] | "SpreadParts" >> beam.Reshuffle()
        rest = _typed(parts | "ListPart" >> self._list())
        return ListResult(
            *(
                (one, other) | f"Flatten{name.capitalize()}" >> beam.Flatten()
                for name, one, other in zip(ListResult._fields, begun, rest, strict=True)
            )
        )

    def _list(self) -> Any:  # noqa: ANN401  # Beam does not export the type.
        list_fn = _ListFn(sources=self.sources, splits=self.splits)
        tags = (_MASKS, _FILES, _REJECTS, _CENSUS, _PARTS)
        return beam.ParDo(list_fn).with_outputs(*tags, main="images")


def _typed(outputs: Any) -> ListResult:  # noqa: ANN401  # As above.
    outputs[_MASKS].element_type = _Mask
    outputs[_FILES].element_type = ListedFile
    outputs[_REJECTS].element_type = Reject
    outputs[_CENSUS].element_type = Census
    outputs[_PARTS].element_type = _Part
    return ListResult(
        images=outputs.images,
        masks=outputs[_MASKS],
        files=outputs[_FILES],
        rejects=outputs[_REJECTS],
        census=outputs[_CENSUS],
    )


def _expand_pattern(element: _Root) -> Iterator[_Root]:
    source, index, root = element
    for uri in expand_root(root):
        yield source, index, uri


@beam.typehints.with_output_types(_Image)
class _ListFn(beam.DoFn):
    def __init__(self, *, sources: Sequence[Source], splits: SplitAssignment) -> None:
        self._sources = {source.name: source for source in sources}
        self._splits = splits
        self._version = importlib.metadata.version("shardbeam")

    def setup(self) -> None:
        installed = importlib.metadata.version("shardbeam")
        if installed != self._version:
            raise InputError(
                uri="worker",
                problem=f"it has Shardbeam {installed}, and the launcher has {self._version}; give "
                "both the same, such as by the container image (--sdk_container_image)",
            )

    def start_bundle(self) -> None:
        self._census = Census()

    def process(self, element: _Root | _Part) -> Iterator[_Image | pvalue.TaggedOutput[str, Any]]:
        name, root, where = element
        source = self._sources[name]
        for listed in list_files(source, where, root=root, splits=self._splits):
            if isinstance(listed, ListingPart):
                yield pvalue.TaggedOutput(_PARTS, (name, root, listed))
            elif isinstance(listed, Reject):
                self._census.listing.add_images(1, split=listed.split)
                self._census.add_reject(listed)
                yield pvalue.TaggedOutput(_REJECTS, listed)
            elif listed.place.role is not Role.OTHER:
                self._census.listing.add_fingerprint(fingerprint_file(listed.file))
                item, identity = listed.item(), (name, listed.place.join)
                if isinstance(item, ListedImage):
                    split = self._splits.split_of(source=name, key=item.key)
                    self._census.listing.add_images(1, split=split)
                    yield identity, item
                elif isinstance(item, AnnotationEntry):
                    yield pvalue.TaggedOutput(_MASKS, (identity, item))
                elif item is not None:
                    yield pvalue.TaggedOutput(_FILES, item)
        report_usage()

    def finish_bundle(self) -> Iterator[Any]:
        yield in_global_window(pvalue.TaggedOutput(_CENSUS, self._census))

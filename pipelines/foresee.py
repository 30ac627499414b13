"""Foresees what a build will take and reject, before it reads the images."""

from __future__ import annotations

from collections.abc import Iterator

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.input_samples import Foreseen
from shardbeam.transforms.dataset.rejects import describe_split_rejects
from shardbeam.transforms.formats.names import is_heif_name
from shardbeam.transforms.images.decode import advise_on_undecodable
from shardbeam.transforms.storage.image_bytes import LFS_POINTER, is_lfs_pointer, read_bytes

# Measured (docs/guide/running.md#memory): a plan without records, a record of a listed image, and
# what a build takes beyond the larger of the plan's records and these.
_PLAN_BYTES = 130_000_000
_IMAGE_BYTES = 1_100
_MORE_BYTES = 80_000_000


def foresee_memory(*, images: int, plan_bytes: int) -> int:
    """Estimates the memory of a build in one process, in bytes: 0.98 to 1.2 times as measured.

    Args:
        images: How many images it has.
        plan_bytes: The most memory that the process of the plan had, which held the same
            annotations; 0 if it is not known.
    """
    return max(plan_bytes, _PLAN_BYTES + _IMAGE_BYTES * images) + _MORE_BYTES


def describe_foreseen(inputs: InputCounts) -> Iterator[str]:
    """Describes the rejects of each split with their reasons, one line each."""
    for split, counts in inputs.splits.items():
        if any(counts.rejected.values()):
            first = inputs.samples.first_rejects.get(split, ())
            yield describe_split_rejects(split, counts.rejected, first=first)
    foreseen = inputs.samples.foreseen
    if count := sum(foreseen.undecodable.values()):
        have = "1 image has the extension" if count == 1 else f"{count:,} images have extensions"
        advice = advise_on_undecodable(is_heif=is_heif_name(foreseen.first))
        yield f"{have} of formats that cannot be decoded, such as {foreseen.first}; {advice}"


def warn_of_pointers(foreseen: Foreseen) -> Iterator[str]:
    """Warns of pointers of Git LFS: the few shortest images are read to find them."""
    for image in foreseen.shortest:
        try:
            is_pointer = is_lfs_pointer(read_bytes(image))
        except (RejectedError, OSError):
            # The build reports it.
            continue
        if is_pointer:
            files = "image is" if foreseen.short == 1 else "images are"
            yield f"{image.uri}: {LFS_POINTER}; {foreseen.short:,} {files} as short as a pointer"
            return

"""What the writer of a shard reports, and what a resumed run finds in the shard's done-file."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import msgspec

from shardbeam.transforms.core.reasons import PASSING_REASONS
from shardbeam.transforms.core.records import Reject


class Origin(str, enum.Enum):
    """Where a shard's bytes come from."""

    # Its images were read.
    WRITTEN = "written"
    # It was copied from the previous version of the dataset.
    COPIED = "copied"
    # It should have been copied, but is damaged there or gone: its images were read.
    MENDED = "mended"


class StagedFile(msgspec.Struct, frozen=True, array_like=True):
    """A finished file that waits for the commit.

    Attributes:
        staged: Its path below the staging folder, unique to the attempt that wrote it.
        destination: Its path below the dataset's folder.
        size_bytes: Its length.
        crc32c: Checksum of the whole file, 8 hex digits.
    """

    staged: str
    destination: str
    size_bytes: int
    crc32c: str


class ShardResult(msgspec.Struct, frozen=True, array_like=True):
    """One shard, written to staging.

    Attributes:
        split: Its split.
        shard_index: Which of the split's shards.
        num_shards: How many the split has.
        data: The TFRecord file.
        index: The Parquet file with a row an example.
        examples: Examples in `data`.
        fingerprint: Sum of the fingerprints of its inputs, hex (`transforms.dataset.manifest`).
        inputs: Images that `fingerprint` covers.
        corrections: `{correction: count}`.
        rejects: The records that could not be written.
        resumed: Whether an earlier run wrote it, and did not copy it.
        images: Images that `data` is made of; 1 for each row where there are no images.
        excluded: `{rule: count}` of the images that a rule leaves out only now.
        key: Its shard key (`dataset.staging.shard_key`).
        records: Records that went into it: all that became Examples, rejects or exclusions.
        origin: Where its bytes come from, whichever run brought them.
        run_id: The run that brought them.
    """

    split: str
    shard_index: int
    num_shards: int
    data: StagedFile
    index: StagedFile
    examples: int
    fingerprint: str
    inputs: int
    corrections: Mapping[str, int]
    rejects: tuple[Reject, ...] = ()
    resumed: bool = False
    images: int = 0
    excluded: Mapping[str, int] = {}
    key: str = ""
    records: int = 0
    origin: Origin = Origin.WRITTEN
    run_id: str = ""

    @property
    def may_differ(self) -> bool:
        """Whether its key does not decide all of it: a reject's reason may pass."""
        return any(reject.reason in PASSING_REASONS for reject in self.rejects)

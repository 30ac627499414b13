"""Who goes where: split, shard and order, from a keyed hash of the example's identity.

Nothing here depends on arrival order, on the number of workers or on the runner.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping

import msgspec

from shardbeam.transforms.core.patterns import search

HASH_BYTES = 16
# Where there is no telling which split an input belongs to.
NO_SPLIT = ""
_HASH_RANGE = 1 << (8 * HASH_BYTES)


def example_hash(*, seed: int, source: str, key: str) -> bytes:
    """Hashes an example's identity: 16 bytes, uniform, keyed by the config's seed.

    The order of these hashes is the order of the examples in their split.
    """
    return _keyed_hash(seed=seed, purpose=b"shardbeam-shard", source=source, text=key)


def shard_index(example_hash: bytes, *, num_shards: int) -> int:
    """Maps a hash to a shard, so that shards are consecutive ranges of the hash."""
    return int.from_bytes(example_hash, "big") * num_shards // _HASH_RANGE


def shard_count(*, num_bytes: int, num_examples: int, shard_size_bytes: int) -> int:
    """Decides a split's number of shards: by size, and never more than it has examples."""
    return max(1, min(num_examples, math.ceil(num_bytes / shard_size_bytes)))


class SplitAssignment(msgspec.Struct, frozen=True, kw_only=True):
    """Which split an example belongs to.

    Attributes:
        by_source: `{source: split}`, for sources that are one split each.
        fractions: `{split: fraction}` adding up to 1, for all other sources.
        group_by: A regular expression on the key: what its first group (or else the whole
            match) says stays together in one split.
        seed: Key of the hash.
        predefined: Splits that the source itself puts its images into; then nothing of the above.
    """

    by_source: Mapping[str, str]
    fractions: Mapping[str, float] = {}
    group_by: str | None = None
    seed: int = 0
    predefined: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All splits, in the config's order."""
        return tuple(dict.fromkeys([*self.by_source.values(), *self.fractions, *self.predefined]))

    def matches(self, *, source: str, key: str) -> bool:
        """Says whether `group_by`, where it is used, finds a group in the key."""
        if self.group_by is None or source in self.by_source:
            return True
        return search(self.group_by, key, setting="group_by") is not None

    def split_of(self, *, source: str, key: str, predefined: str = NO_SPLIT) -> str:
        """Finds the split of an example; a key without a group is a group of its own.

        Returns:
            The split, or `NO_SPLIT` where the source should predefine it and does not.
        """
        if self.predefined:
            return predefined if predefined in self.predefined else NO_SPLIT
        split = self.by_source.get(source)
        if split is not None:
            return split
        digest = _keyed_hash(
            seed=self.seed, purpose=b"shardbeam-split", source=source, text=self._group(key)
        )
        point = int.from_bytes(digest, "big") / _HASH_RANGE
        upper = 0.0
        for split, fraction in self.fractions.items():
            upper += fraction
            if point < upper:
                return split
        # The fractions' sum may round to just below 1.
        return max(self.fractions, key=lambda split: self.fractions[split])

    def _group(self, key: str) -> str:
        if self.group_by is None:
            return key
        match = search(self.group_by, key, setting="group_by")
        if match is None:
            return key
        return match[1] if match.re.groups and match[1] is not None else match[0]


def _keyed_hash(*, seed: int, purpose: bytes, source: str, text: str) -> bytes:
    # A NUL can stand in neither a source's name nor a key, so the pair stays unambiguous.
    return hashlib.blake2b(
        f"{source}\0{text}".encode(),
        digest_size=HASH_BYTES,
        key=str(seed).encode(),
        person=purpose,
    ).digest()

"""The key of a shard, a digest of all that decides its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec


def shard_key(
    *, settings_digest: str, split: str, shard_index: int, num_shards: int, records: Iterable[bytes]
) -> str:
    """Digests all that decides a shard's bytes.

    Args:
        settings_digest: Digest of all settings that matter, and of the schema.
        split: The shard's split.
        shard_index: Which of the split's shards.
        num_shards: How many the split has.
        records: The shard's encoded records, in order.
    """
    digest = hashlib.sha256(
        msgspec.msgpack.encode(
            [settings_digest, split, shard_index, num_shards], order="deterministic"
        )
    )
    for record in records:
        digest.update(len(record).to_bytes(8, "little"))
        digest.update(record)
    return digest.hexdigest()

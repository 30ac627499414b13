from __future__ import annotations

import errno
import hashlib
import io
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

import google_crc32c
import pytest

from shardbeam.transforms.dataset.block_writer import BlockWriter

if TYPE_CHECKING:
    from typing_extensions import Buffer

BLOCK_BYTES = 2 << 20


class Recorder(io.BytesIO):
    """Keeps what is written; from some write on it fails."""

    def __init__(self, *, fails_at: int = -1) -> None:
        super().__init__()
        self.writes: list[bytes] = []
        self._fails_at = fails_at

    def write(self, data: Buffer, /) -> int:
        if len(self.writes) == self._fails_at:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.writes.append(bytes(data))
        return len(self.writes[-1])


def chunks_of(sizes: Sequence[int]) -> list[bytes]:
    rng = random.Random(0)
    return [rng.randbytes(size) for size in sizes]


@pytest.mark.parametrize(
    "sizes",
    [
        (),
        (0,),
        (1, 2, 3),
        (BLOCK_BYTES,),
        (BLOCK_BYTES - 1, 2),
        (3 * BLOCK_BYTES + 5, 1),
        (12, 140_000, 4) * 160,
    ],
)
def test_what_is_written_arrives_in_order_and_is_digested(
    sizes: Sequence[int],
) -> None:
    chunks = chunks_of(sizes)
    file = Recorder()
    with BlockWriter(file) as writer:
        for chunk in chunks:
            writer.write(chunk)
    data = b"".join(chunks)
    assert b"".join(file.writes) == data
    assert {len(block) for block in file.writes[:-1]} <= {BLOCK_BYTES}
    assert writer.size_bytes == len(data)
    assert writer.sha256 == hashlib.sha256(data).hexdigest()
    assert writer.crc32c == f"{google_crc32c.value(data):08x}"


@pytest.mark.parametrize("fails_at", [0, 1, 5])
def test_a_full_disk_is_an_error_at_the_latest_in_the_end(fails_at: int) -> None:
    def write() -> None:
        with BlockWriter(Recorder(fails_at=fails_at)) as writer:
            for chunk in chunks_of((BLOCK_BYTES,) * 5 + (1,)):
                writer.write(chunk)

    with pytest.raises(OSError, match="No space left"):
        write()


def test_what_goes_wrong_outside_ends_the_writing() -> None:
    file = Recorder()

    def write() -> None:
        with BlockWriter(file) as writer:
            writer.write(b"abc")
            raise KeyError

    with pytest.raises(KeyError):
        write()
    assert file.writes == []

from __future__ import annotations

import io

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.containers.tfrecord import CONTAINER, OVERHEAD_BYTES, frame, read_records
from tests.support.tfrecords import tfrecord


@given(st.lists(st.binary(max_size=100)))
def test_reading_gives_back_what_was_tfrecord(records: list[bytes]) -> None:
    data = tfrecord(*records)
    assert len(data) == sum(len(record) + OVERHEAD_BYTES for record in records)
    assert list(read_records(io.BytesIO(data))) == records


@given(st.data())
def test_every_damage_is_found(data: st.DataObject) -> None:
    content = bytearray(tfrecord(b"first", b"second"))
    position = data.draw(st.integers(0, len(content) - 1))
    content[position] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(ValueError, match=r"^byte \d+: "):
        list(read_records(io.BytesIO(bytes(content))))


@pytest.mark.parametrize("size", range(1, len(tfrecord(b"first"))))
def test_every_truncation_is_found(size: int) -> None:
    with pytest.raises(ValueError, match=r"^byte 0: cut off"):
        list(read_records(io.BytesIO(tfrecord(b"first")[:size])))


def test_a_record_longer_than_any_example_is_not_read() -> None:
    """Its length has the right checksum, and a sparse file would give as many bytes."""
    length = (30 << 30).to_bytes(8, "little")
    header = frame(30 << 30, crc32c=0)[0]
    assert header.startswith(length)
    with pytest.raises(ValueError, match="byte 0: a record of 32212254720 bytes is too long"):
        list(read_records(io.BytesIO(header + b"0" * 100)))


@given(st.lists(st.binary(max_size=200)), st.integers(0, 3))
def test_the_checksum_of_a_file_follows_from_those_of_its_records(
    records: list[bytes], large: int
) -> None:
    records += [bytes([each]) * 70_000 * (1 + each) for each in range(large)]
    content = b""
    for record in records:
        header, footer = frame(len(record), crc32c=google_crc32c.value(record))
        content += header + record + footer
    facts = [(len(record), google_crc32c.value(record)) for record in records]
    assert CONTAINER.checksum(facts) == google_crc32c.value(content)

from __future__ import annotations

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from transforms.crc32c import concatenate_crc32c, crc32c


@given(st.lists(st.binary(max_size=50)))
def test_parts_are_digested_as_one(parts: list[bytes]) -> None:
    assert crc32c(*parts) == google_crc32c.value(b"".join(parts))


@given(st.binary(max_size=50), st.binary(max_size=50), st.integers(0, 5000))
def test_checksums_are_put_together_without_the_bytes(
    first: bytes, second: bytes, repeats: int
) -> None:
    second *= repeats
    together = concatenate_crc32c(crc32c(first), crc32c(second), second_bytes=len(second))
    assert together == crc32c(first, second)


def test_long_parts_are_put_together() -> None:
    second = bytes(range(256)) * 70_001
    assert concatenate_crc32c(1234567, crc32c(second), second_bytes=len(second)) == (
        google_crc32c.extend(1234567, second)
    )

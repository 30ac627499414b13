from __future__ import annotations

import google_crc32c
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.crc32c import crc32c


@given(st.lists(st.binary(max_size=50)))
def test_parts_are_digested_as_one(parts: list[bytes]) -> None:
    assert crc32c(*parts) == google_crc32c.value(b"".join(parts))

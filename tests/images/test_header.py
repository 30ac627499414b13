from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.images.header import check_pixel_count, exif_orientation
from tests.support.image_makers import exif


@pytest.mark.parametrize("kind", [3, 4])
@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("prefix", [b"", b"Exif\0\0"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_orientation_is_read(orientation: int, prefix: bytes, order: str, kind: int) -> None:
    assert exif_orientation(prefix + exif(orientation, order=order, kind=kind)) == orientation


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_invalid_orientation_is_none(orientation: int) -> None:
    assert exif_orientation(exif(orientation)) == 1


def test_an_orientation_of_another_type_is_none() -> None:
    block = bytearray(exif(6))
    block[12] = 2  # ASCII
    assert exif_orientation(bytes(block)) == 1


def test_an_exif_block_that_ends_early_has_no_orientation() -> None:
    block = exif(6)
    value_ends = 8 + 2 + 8 + 2
    for length in range(value_ends):
        assert exif_orientation(block[:length]) == 1
    assert exif_orientation(block[:value_ends]) == 6


@given(st.binary(max_size=64))
def test_any_exif_block_gives_an_orientation(tail: bytes) -> None:
    assert exif_orientation(b"MM\0*" + tail) in range(1, 9)
    assert exif_orientation(tail) in range(1, 9)


def test_pixels_are_counted() -> None:
    check_pixel_count(10, 10, max_pixels=100)
    with pytest.raises(RejectedError) as caught:
        check_pixel_count(10, 11, max_pixels=100)
    assert caught.value.reason is Reason.DECOMPRESSION_BOMB

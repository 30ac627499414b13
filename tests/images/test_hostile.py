"""Whatever the bytes, an image is stored or rejected; nothing else is ever raised."""

from __future__ import annotations

import functools
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.images.check import check_image
from tests.support.hostile_images import icon, progressive_jpeg
from tests.support.image_makers import exif, photograph, save, with_chunk, with_orientation

SIGNATURES = [
    b"\xff\xd8\xff",
    b"\xff\xd8\xff\xc0\0\x11\x08\0\x10\0\x10\x03",
    b"\x89PNG\r\n\x1a\n",
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR",
    b"GIF89a",
    b"RIFF\x20\0\0\0WEBPVP8 ",
    b"BM" + bytes(12) + b"\x28\0\0\0",
    b"II*\0\x08\0\0\0",
    b"MM\0*\0\0\0\x08",
    b"II+\0\x08\0\0\0",
    b"\0\0\0\x0cjP  \r\n\x87\n",
    b"\xff\x4f\xff\x51",
    b"\0\0\0\x18ftypavif",
    b"P6 4 4 255\n",
    b"P3 4 4 ",
    b"\0\0\1\0\1\0",
]
ALL_SETTINGS = [
    ImageConfig(max_pixels=1 << 20),
    ImageConfig(max_pixels=1 << 20, damaged="keep", encoding="png", max_side=16),
    ImageConfig(max_pixels=1 << 20, verify="header", orientation="keep", max_side=20),
    ImageConfig(max_pixels=1 << 20, verify="none"),
]


@functools.cache
def good_files() -> list[bytes]:
    image = photograph(width=40, height=30)
    jpeg = save(image, "JPEG")
    return [
        jpeg,
        with_orientation(jpeg, 6),
        save(image, "JPEG", progressive=True),
        progressive_jpeg(40, 30, scans=883),
        save(image.convert("CMYK"), "JPEG"),
        save(image, "PNG"),
        with_chunk(save(image.convert("P"), "PNG"), b"eXIf", exif(6)),
        save(image.convert("I;16"), "PNG"),
        save(image, "PNG", save_all=True, append_images=[image.rotate(90)]),
        save(image, "GIF", save_all=True, append_images=[image.rotate(90)]),
        save(image, "WEBP", exif=b"Exif\0\0" + exif(6)),
        save(image.convert("RGBA"), "WEBP", lossless=True),
        save(image, "BMP"),
        save(image, "TIFF"),
        save(image, "TIFF", compression="tiff_lzw"),
        save(image, "TIFF", compression="jpeg"),
        save(image, "JPEG2000"),
        save(image, "AVIF"),
        save(image, "PPM"),
        save(image, "ICO"),
        icon(save(image, "PNG")),
    ]


def ends_well(data: bytes, image_settings: ImageConfig) -> bool:
    """Returns whether the image is stored; raises anything but a reject."""
    try:
        stored = check_image(data, name="image", settings=image_settings)
    except RejectedError:
        return False
    assert stored.width * stored.height <= image_settings.max_pixels
    assert stored.orientation in range(1, 9)
    if stored.data is not data:
        image = Image.open(io.BytesIO(stored.data))
        image.load()
        assert image.size == (stored.width, stored.height)
        assert image.format == stored.format.upper()
        assert image.mode in ("L", "RGB")
    return True


@pytest.mark.parametrize("image_settings", ALL_SETTINGS)
def test_the_good_files_are_good(image_settings: ImageConfig) -> None:
    assert all(ends_well(data, image_settings) for data in good_files())


@given(
    signature=st.sampled_from([b"", *SIGNATURES]),
    tail=st.binary(max_size=300),
    image_settings=st.sampled_from(ALL_SETTINGS),
)
@settings(max_examples=300)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_arbitrary_bytes_after_a_signature(
    signature: bytes, tail: bytes, image_settings: ImageConfig
) -> None:
    ends_well(signature + tail, image_settings)


@st.composite
def mutated_files(draw: st.DrawFn) -> bytes:
    """A good file with bytes replaced, cut out or doubled, its header above all."""
    data = draw(st.sampled_from(good_files()))
    for _ in range(draw(st.integers(1, 4))):
        last = len(data) - 1
        start = draw(st.integers(0, min(last, 300)) | st.integers(0, last))
        end = min(len(data), start + draw(st.integers(1, 40)))
        middle = draw(
            st.binary(min_size=1, max_size=4) | st.sampled_from([b"", data[start:end] * 2])
        )
        data = data[:start] + middle + data[end if len(middle) != 1 else start + 1 :]
        if not data:
            break
    return data


@given(data=mutated_files(), image_settings=st.sampled_from(ALL_SETTINGS))
@settings(max_examples=500)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_mutated_files(data: bytes, image_settings: ImageConfig) -> None:
    ends_well(data, image_settings)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("image_settings", [ALL_SETTINGS[0], ALL_SETTINGS[2]])
def test_every_prefix_is_rejected(file_format: str, image_settings: ImageConfig) -> None:
    data = save(photograph(width=20, height=15), file_format)
    for length in range(len(data)):
        assert not ends_well(data[:length], image_settings)
    assert ends_well(data, image_settings)

"""HEIC files: how they are stored, turned and refused, with the library that decodes them."""

from __future__ import annotations

import io
import struct
import sys
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np
import pytest
from PIL import Image

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.extras import import_heif
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.images.check import StoredImage, check_image
from shardbeam.transforms.images.codecs import codec_versions
from tests.images.test_orientation import upright
from tests.support.image_makers import exif, photograph, pixels

heif = pytest.importorskip("pillow_heif")

IMAGE = photograph()


def heic(*images: Image.Image, **options: object) -> bytes:
    """Makes a HEIC file of pictures; those of Apple's phones have tiles (`tile_size`), too."""
    file = heif.HeifFile()
    for image in images:
        file.add_from_pillow(image)
    buffer = io.BytesIO()
    file.save(buffer, quality=90, chroma=444, **options)
    return buffer.getvalue()


HEIC = heic(IMAGE)


def check(data: bytes, **settings: Any) -> StoredImage:  # noqa: ANN401  # Those of ImageConfig.
    return check_image(data, name="a.heic", settings=ImageConfig(encoding="png", **settings))


def reject_of(data: bytes, **settings: Any) -> RejectedError:  # noqa: ANN401  # Those of ImageConfig.
    with pytest.raises(RejectedError) as caught:
        check(data, **settings)
    return caught.value


def mean_difference(data: bytes, expected: Image.Image) -> float:
    return float(np.abs(pixels(data).astype(int) - np.asarray(expected)).mean())


@pytest.mark.parametrize("encoding", ["jpeg", "png"])
@pytest.mark.parametrize("name", ["a.heic", "b.HEIF", "c.hif"])
def test_files_are_converted(encoding: Literal["jpeg", "png"], name: str) -> None:
    stored = check_image(HEIC, name=name, settings=ImageConfig(encoding=encoding))
    assert (stored.format, stored.width, stored.height) == (encoding, *IMAGE.size)
    assert stored.corrections == {Correction.IMAGE_CONVERTED: ("heic", encoding)}
    assert mean_difference(stored.data, IMAGE) < 3


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize(
    ("setting", "tiles"), [("apply", {}), ("keep", {}), ("apply", {"tile_size": 64})]
)
def test_pictures_are_turned_once(orientation: int, setting: str, tiles: dict[str, int]) -> None:
    # As phones write them: the container and EXIF say the same.
    image = photograph(width=144, height=80) if tiles else IMAGE
    data = heic(image, exif=b"Exif\0\0" + exif(orientation), **tiles)
    stored = check(data, orientation=setting)
    expected = Image.fromarray(upright(np.asarray(image), orientation))
    assert (stored.width, stored.height) == expected.size
    assert (stored.file_width, stored.file_height) == expected.size
    assert (stored.orientation, stored.upright) == (1, True)
    assert tuple(stored.corrections) == (Correction.IMAGE_CONVERTED,)
    assert mean_difference(stored.data, expected) < 3


def test_an_orientation_that_only_exif_has_is_none() -> None:
    block = Image.Exif()
    block[0x0112] = 6
    stored = check(heic(IMAGE, exif=block))
    assert (stored.width, stored.height, stored.orientation) == (*IMAGE.size, 1)


def test_transparent_pictures_are_laid_over_the_background() -> None:
    clear = Image.new("RGBA", (64, 48), (200, 0, 0, 0))
    stored = check(heic(clear), background="#00ff00")
    assert np.abs(pixels(stored.data).astype(int) - (0, 255, 0)).max() < 4


def test_more_than_eight_bits_are_reduced() -> None:
    buffer = io.BytesIO()
    wide = np.asarray(IMAGE).astype("<u2") * 257
    heif.encode("RGB;16", IMAGE.size, wide.tobytes(), buffer, quality=90, chroma=444)
    assert mean_difference(check(buffer.getvalue()).data, IMAGE) < 3
    gray = IMAGE.convert("L")
    buffer = io.BytesIO()
    wide = np.asarray(gray).astype("<u2") * 257
    heif.encode("I;16", gray.size, wide.tobytes(), buffer, quality=90)
    assert mean_difference(check(buffer.getvalue()).data, gray.convert("RGB")) < 3


@pytest.mark.parametrize("primary", [0, 1])
def test_the_main_picture_of_several_is_kept(primary: int) -> None:
    images = (IMAGE, IMAGE.resize((32, 24)))
    stored = check(heic(*images, primary_index=primary))
    assert (stored.width, stored.height) == images[primary].size
    assert tuple(stored.corrections) == (Correction.IMAGE_CONVERTED, Correction.FIRST_FRAME_KEPT)


@pytest.mark.parametrize("tiles", [{}, {"tile_size": 64}])
def test_files_that_end_too_early_are_refused(tiles: dict[str, int]) -> None:
    # libheif alone would leave missing tiles black.
    data = heic(photograph(width=144, height=80), **tiles)
    # In the first box, in the description of the picture, between boxes, and in the data.
    cuts = (*range(12, len(data) - 1, 50), data.index(b"mdat") - 4, len(data) - 1)
    reasons = [reject_of(data[:cut]).reason for cut in cuts]
    assert reasons == [Reason.TRUNCATED] * len(cuts)


@pytest.mark.parametrize("more", [b"\0" * 20, b"\0\0\1\0mpvd" + bytes(30), b"x"])
def test_what_phones_append_does_no_harm(more: bytes) -> None:
    assert check(HEIC + more).data == check(HEIC).data


def test_large_pictures_are_refused_before_they_are_decoded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heif.HeifImageFile, "load", lambda _: pytest.fail("it was decoded"))
    assert reject_of(HEIC, max_pixels=64 * 48 - 1).reason is Reason.DECOMPRESSION_BOMB
    large = heic(Image.new("L", (400, 250)).convert("RGB"))
    error = reject_of(large, max_decoded_mb=1)
    assert error.reason is Reason.DECODE_BOMB
    assert "takes 2 MB" in error.detail


@pytest.mark.parametrize("size", [(8, 8), (65, 48), (30_000, 30_000)])
def test_a_header_with_another_size_is_refused(size: tuple[int, int]) -> None:
    start = HEIC.index(b"ispe") + 8
    error = reject_of(HEIC[:start] + struct.pack(">II", *size) + HEIC[start + 8 :])
    assert error.reason in (Reason.CORRUPT, Reason.DECOMPRESSION_BOMB)


def test_other_damage_is_refused_or_decoded() -> None:
    rng = np.random.default_rng(0)
    details = set()
    for _ in range(200):
        data = bytearray(HEIC)
        for place in rng.integers(12, len(HEIC), 2):
            data[place] = rng.integers(256)
        try:
            check(bytes(data), max_pixels=1 << 20)
        except RejectedError as error:
            details.add(error.detail)
    assert len(details) > 5
    assert all("\n" not in detail for detail in details)


def test_the_versions_of_its_libraries_are_known() -> None:
    versions = codec_versions()
    assert versions["libheif"] == heif.libheif_version()
    assert "libde265" in versions["libde265"]


@pytest.fixture
def imports(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """The library is looked for again, during the test and after it."""
    import_heif.cache_clear()
    yield monkeypatch
    monkeypatch.undo()
    import_heif.cache_clear()


def test_without_a_library_the_reject_names_it(imports: pytest.MonkeyPatch) -> None:
    imports.setitem(sys.modules, "pillow_heif", None)
    imports.setitem(sys.modules, "pi_heif", None)
    error = reject_of(HEIC)
    assert error.reason is Reason.UNSUPPORTED_IMAGE
    assert error.detail == (
        "HEIC: cannot be decoded; pip install 'pillow-heif>=1.4', or convert such files to JPEG or "
        "PNG first"
    )
    assert "libheif" not in codec_versions()


def test_an_old_library_counts_as_none(imports: pytest.MonkeyPatch) -> None:
    imports.setattr(heif, "libheif_version", lambda: "1.21.2")
    assert reject_of(HEIC).reason is Reason.UNSUPPORTED_IMAGE


def test_the_decoder_without_an_encoder_is_used_if_it_is_alone(imports: pytest.MonkeyPatch) -> None:
    imports.setitem(sys.modules, "pi_heif", heif)
    imports.setitem(sys.modules, "pillow_heif", None)
    assert check(HEIC).format == "png"

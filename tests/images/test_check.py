from __future__ import annotations

import errno
import io
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import numpy as np
import pytest
from PIL import Image, ImageCms, TiffImagePlugin, features

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core import memory
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.images.check import StoredImage, check_image
from shardbeam.transforms.images.codecs import codec_versions
from tests.conftest import PROJECT_ROOT
from tests.support.hostile_images import icon
from tests.support.image_makers import (
    after_soi,
    chunk,
    exif,
    gray_jpeg_with_sampling,
    photograph,
    pixels,
    png,
    save,
    segment,
    with_chunk,
    with_orientation,
)

DEFAULTS = ImageConfig()
HEADER = ImageConfig(verify="header")
NONE = ImageConfig(verify="none")

JPEG = save(photograph(), "JPEG")
GRAY_JPEG = save(photograph().convert("L"), "JPEG")
PNG = save(photograph(), "PNG")
GRAY_PNG = save(photograph().convert("L"), "PNG")
GIF = save(photograph(), "GIF")
MIDDLE = len(JPEG) - 300
DAMAGED_JPEG = JPEG[:MIDDLE] + bytes(200) + JPEG[MIDDLE + 200 :]
CHANGED_PNG = PNG[:-200] + bytes((PNG[-200] ^ 1,)) + PNG[-199:]


def check(data: bytes, settings: ImageConfig = DEFAULTS, *, name: str = "image") -> StoredImage:
    return check_image(data, name=name, settings=settings)


def reject_of(
    data: bytes, settings: ImageConfig = DEFAULTS, *, name: str = "image"
) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        check(data, settings, name=name)
    return caught.value


@pytest.mark.parametrize("settings", [DEFAULTS, HEADER, NONE])
@pytest.mark.parametrize(
    ("data", "image_format", "channels"),
    [
        (JPEG, "jpeg", 3),
        (GRAY_JPEG, "jpeg", 1),
        (save(photograph(), "JPEG", progressive=True), "jpeg", 3),
        (after_soi(JPEG, segment(0xE2, b"MPF\0" + bytes(20))) + JPEG, "jpeg", 3),
        (with_orientation(JPEG, 1), "jpeg", 3),
        (with_orientation(JPEG, 9), "jpeg", 3),
        (PNG, "png", 3),
        (GRAY_PNG, "png", 1),
        (save(photograph().convert("1"), "PNG"), "png", 1),
        (with_chunk(PNG, b"eXIf", exif(1)), "png", 3),
    ],
)
def test_common_files_are_stored_as_they_are(
    data: bytes, image_format: str, channels: int, settings: ImageConfig
) -> None:
    stored = check(data, settings)
    assert stored.data is data
    assert (stored.format, stored.channels) == (image_format, channels)
    assert (stored.width, stored.height) == (stored.file_width, stored.file_height) == (64, 48)
    assert (stored.orientation, stored.upright) == (1, True)
    assert ("dhash" in stored.measures) == (settings is DEFAULTS)


@pytest.mark.parametrize("settings", [DEFAULTS, HEADER, NONE])
@pytest.mark.parametrize(
    "data",
    [
        save(photograph().convert("CMYK"), "JPEG"),
        save(photograph().convert("P"), "PNG"),
        save(photograph().convert("RGBA"), "PNG"),
        save(photograph().convert("LA"), "PNG"),
        save(photograph().convert("I;16"), "PNG"),
        save(photograph(), "PNG", transparency=(0, 0, 0)),
        GIF,
        save(photograph(), "WEBP"),
        save(photograph(), "BMP"),
        save(photograph(), "TIFF", compression="tiff_lzw"),
        save(photograph().convert("L"), "TIFF"),
        save(photograph(), "JPEG2000"),
        save(photograph(), "AVIF"),
        save(photograph(), "PPM"),
    ],
)
def test_all_others_become_rgb(data: bytes, settings: ImageConfig) -> None:
    stored = check(data, settings)
    image = Image.open(io.BytesIO(stored.data))
    assert (stored.format, image.format, image.mode) == ("jpeg", "JPEG", "RGB")
    assert image.size == (64, 48) == (stored.width, stored.height)
    assert (stored.file_width, stored.file_height) == (64, 48)
    assert tuple(stored.corrections) == (Correction.IMAGE_CONVERTED,)


@pytest.mark.parametrize("settings", [DEFAULTS, HEADER, NONE])
@pytest.mark.parametrize("file_format", ["GIF", "PNG", "WEBP", "TIFF", "AVIF"])
def test_the_first_of_several_frames_is_kept_and_counted(
    file_format: str, settings: ImageConfig
) -> None:
    more = [photograph(seed=1), photograph(seed=2)]
    alone = save(photograph(), file_format, lossless=True)
    stored = check(save(photograph(), file_format, save_all=True, append_images=more), settings)
    assert [*stored.corrections] == [Correction.IMAGE_CONVERTED, Correction.FIRST_FRAME_KEPT]
    assert stored.corrections[Correction.FIRST_FRAME_KEPT] == ("several frames", "the first")
    assert Correction.FIRST_FRAME_KEPT not in check(alone, settings).corrections
    if file_format in ("GIF", "TIFF"):
        assert stored.data == check(alone, settings).data


def test_smaller_versions_in_a_tiff_are_no_frames() -> None:
    pages = TiffImagePlugin.AppendingTiffWriter(out := io.BytesIO(), new=True)
    photograph().save(pages, "TIFF")
    pages.newFrame()
    photograph().resize((32, 24)).save(pages, "TIFF", tiffinfo={254: 1})
    pages.newFrame()
    pages.finalize()
    data = out.getvalue()
    with Image.open(io.BytesIO(data)) as image:
        assert getattr(image, "n_frames", 1) == 2
    assert tuple(check(data, DEFAULTS).corrections) == (Correction.IMAGE_CONVERTED,)


def test_a_pointer_of_git_lfs_is_named() -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 12345\n"
    error = reject_of(pointer, DEFAULTS)
    assert error.reason is Reason.NOT_AN_IMAGE
    assert "Git LFS pointer" in error.detail
    assert "`git lfs pull`" in error.detail


@pytest.mark.parametrize("settings", [DEFAULTS, HEADER])
@pytest.mark.parametrize(
    ("data", "name"), [(PNG, "a/b.jpeg"), (JPEG, "a/b.PNG"), (GIF, "b.webp"), (JPEG, "b.heic")]
)
def test_a_wrong_extension_is_counted_or_refused(
    data: bytes, name: str, settings: ImageConfig
) -> None:
    kept = check(data, settings, name=name)
    assert tuple(kept.corrections) == (
        Correction.WRONG_EXTENSION_KEPT,
        *check(data, settings).corrections,
    )
    reject = msgspec.structs.replace(settings, wrong_extension="reject")
    assert reject_of(data, reject, name=name).reason is Reason.WRONG_EXTENSION


@pytest.mark.parametrize("name", ["b.jpg", "b.JFIF", "b.jpe", "jpg", "b.dat", "b.png/0", ".png"])
def test_other_extensions_are_right(name: str) -> None:
    assert check(JPEG, name=name).corrections == {}


def test_names_are_not_checked_without_verification() -> None:
    assert check(JPEG, NONE, name="image.png").corrections == {}


@pytest.mark.parametrize("settings", [DEFAULTS, HEADER])
@pytest.mark.parametrize("data", [JPEG[:-1], JPEG[:MIDDLE], PNG[:-1], PNG[:-300]])
def test_a_missing_end_is_found(data: bytes, settings: ImageConfig) -> None:
    assert reject_of(data, settings).reason is Reason.TRUNCATED
    assert check(data, NONE).width == 64


@pytest.mark.parametrize(
    ("data", "reason", "words"),
    [
        (b"", Reason.ZERO_BYTE, "empty"),
        (b"<html>Not found</html>", Reason.NOT_AN_IMAGE, "no known image format"),
        *(
            (data[: len(data) // 2], Reason.TRUNCATED, "")
            for data in (save(photograph(), name) for name in ("WEBP", "BMP", "GIF"))
        ),
        (CHANGED_PNG, Reason.CORRUPT, "checksum"),
        # A filter that only Pillow looks at.
        (
            png(width=1, height=1, bit_depth=8, color_type=0, rows=b"\x09\0"),
            Reason.CORRUPT,
            "unrecognized data stream",
        ),
        (DAMAGED_JPEG, Reason.JPEG_DAMAGED, "Corrupt JPEG data"),
        # Formats without a decoder, and samples without black and white.
        (b"\xff\x0a" + bytes(50), Reason.UNSUPPORTED_IMAGE, "JPEG_XL"),
        *(
            (save(photograph().convert("L").convert(mode), "TIFF"), Reason.UNSUPPORTED_IMAGE, "")
            for mode in ("F", "I")
        ),
    ],
)
def test_bad_files_are_refused(data: bytes, reason: Reason, words: str) -> None:
    error = reject_of(data)
    assert error.reason is reason
    assert words in error.detail


def test_damage_is_kept_and_named() -> None:
    kept = check(DAMAGED_JPEG, ImageConfig(damaged="keep"))
    assert kept.data is DAMAGED_JPEG
    complaint = reject_of(DAMAGED_JPEG).detail
    assert kept.corrections == {Correction.JPEG_DAMAGE_KEPT: (complaint, None)}


def test_kept_damage_is_named_after_conversion_too() -> None:
    data = with_orientation(DAMAGED_JPEG, 6)
    kept = check(data, ImageConfig(damaged="keep"))
    assert tuple(kept.corrections) == (Correction.JPEG_DAMAGE_KEPT, Correction.ORIENTATION_APPLIED)
    assert (kept.width, kept.height) == (48, 64)


@pytest.mark.parametrize("data", [DAMAGED_JPEG, CHANGED_PNG])
def test_damage_is_looked_for_by_decoding_only(data: bytes) -> None:
    assert check(data, HEADER).data is data
    assert check(data, HEADER).corrections == {}


@pytest.mark.parametrize("settings", [DEFAULTS, ImageConfig(damaged="keep")])
def test_a_jpeg_that_nobody_can_decode_is_corrupt(settings: ImageConfig) -> None:
    without_tables = JPEG.replace(b"\xff\xdb", b"\xff\xfe")
    assert reject_of(without_tables, settings).reason is Reason.CORRUPT


@pytest.mark.parametrize("junk", [b"junk", b"\xff\0\xff\0", b"\0" * 1000])
def test_junk_between_segments_is_no_damage(junk: bytes) -> None:
    frame = JPEG.index(b"\xff\xc0")
    data = JPEG[:20] + junk + JPEG[20:frame] + junk + JPEG[frame:]
    assert check(data).data is data


def test_junk_between_segments_hides_no_damage() -> None:
    reject = reject_of(DAMAGED_JPEG[:20] + b"junk" + DAMAGED_JPEG[20:])
    assert reject.reason is Reason.JPEG_DAMAGED
    assert reject.detail == reject_of(DAMAGED_JPEG).detail


def test_harmless_headers_are_no_damage() -> None:
    parameters = JPEG.index(b"\xff\xda") + 11
    zero_parameters = JPEG[:parameters] + b"\0\0\0" + JPEG[parameters + 3 :]
    odd_version = JPEG[:11] + b"\x07" + JPEG[12:]
    odd_adobe = after_soi(JPEG, segment(0xEE, b"Adobe\0\x64\0\0\0\0\x07"))
    for data in (zero_parameters, odd_version, odd_adobe):
        assert check(data).data is data


@pytest.mark.parametrize("factors", [(0x11, 0x11, 0x11), (0x31, 0x11, 0x11), (0x11, 0x22, 0x12)])
def test_rare_samplings_are_no_damage(factors: tuple[int, int, int]) -> None:
    data = gray_jpeg_with_sampling(factors)
    assert np.all(pixels(data) == 128)
    assert check(data).data is data


@pytest.mark.parametrize("settings", [DEFAULTS, HEADER, NONE])
@pytest.mark.parametrize("data", [JPEG, PNG, GIF, save(photograph(), "BMP")])
def test_too_many_pixels_are_refused_before_decoding(data: bytes, settings: ImageConfig) -> None:
    enough = msgspec.structs.replace(settings, max_pixels=64 * 48)
    assert check(data, enough).width == 64
    too_few = msgspec.structs.replace(settings, max_pixels=64 * 48 - 1)
    assert reject_of(data, too_few).reason is Reason.DECOMPRESSION_BOMB


def test_a_huge_header_costs_nothing() -> None:
    frame = JPEG.index(b"\xff\xc0")
    huge = JPEG[: frame + 5] + b"\xff\xff\xff\xff" + JPEG[frame + 9 :]
    assert reject_of(huge).reason is Reason.DECOMPRESSION_BOMB
    # Its pixel data does not inflate, which is not even tried.
    huge = PNG[:8] + chunk(b"IHDR", b"\x7f\xff\xff\xff" * 2 + PNG[24:29]) + chunk(b"IDAT", b"no")
    assert reject_of(huge + PNG[-12:]).reason is Reason.DECOMPRESSION_BOMB


@pytest.mark.filterwarnings("ignore:Image was not the expected size")
def test_a_small_icon_may_not_hold_a_large_image() -> None:
    large = icon(save(Image.new("RGB", (300, 300)), "PNG"))
    assert check(large).width == 300
    assert reject_of(large, ImageConfig(max_pixels=1000)).reason is Reason.DECOMPRESSION_BOMB


def test_the_limits_of_pillow_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for data in (JPEG, PNG, save(photograph(), "BMP"), with_orientation(JPEG, 3)):
            assert check(data).width == 64


def test_running_out_of_memory_is_a_reject(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(self: object) -> None:
        raise MemoryError

    monkeypatch.setattr("PIL.BmpImagePlugin.BmpImageFile.load", load)
    assert reject_of(save(photograph(), "BMP")).reason is Reason.DECOMPRESSION_BOMB


@pytest.mark.parametrize(
    ("name", "raised", "has_room"),
    [
        ("JPEG", MemoryError(), False),
        ("BMP", MemoryError(), False),
        ("BMP", OSError(errno.ENOMEM, "Cannot allocate memory"), True),
        ("BMP", ImportError("x.so: failed to map segment from shared object"), True),
        ("BMP", RuntimeError("can't start new thread"), True),
    ],
)
def test_a_process_without_memory_rejects_no_image(
    name: str, raised: Exception, has_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object, **options: object) -> None:
        raise raised

    monkeypatch.setattr(memory, "has_room", lambda size_bytes: has_room)
    monkeypatch.setattr("PIL.BmpImagePlugin.BmpImageFile.load", fail)
    monkeypatch.setattr("simplejpeg.decode_jpeg", fail)
    with pytest.raises(OSError, match="Cannot allocate memory") as caught:
        check(save(photograph(), name))
    assert caught.value.errno == errno.ENOMEM


def test_errors_of_pillow_are_words_for_people() -> None:
    tiff = save(photograph(), "TIFF")
    for data, words in {
        # The directory's place: what follows is no directory.
        tiff[:4] + (4).to_bytes(4, "little") + tiff[8:]: "TIFF: cannot be decoded: ",
        save(photograph(), "BMP")[:-9]: "BMP: cannot be decoded: image file is truncated",
        save(photograph(), "JPEG2000")[:200]: "JPEG 2000: cannot be decoded: ",
    }.items():
        detail = reject_of(data).detail
        assert detail.startswith(words)
        assert "Error" not in detail


@pytest.mark.parametrize(
    ("raised", "words"),
    [
        (IndexError("index out of range"), "its content makes no sense"),
        (KeyError(5), "its content makes no sense"),
        (OSError("broken data stream"), "broken data stream"),
        (SyntaxError(""), "its content makes no sense"),
        (MemoryError(), "it takes more memory than there is"),
    ],
)
@pytest.mark.parametrize("wrapped", [False, True])
def test_what_python_says_of_pillow_is_none_of_a_persons_business(
    raised: Exception, words: str, wrapped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(self: object) -> None:
        if wrapped and not isinstance(raised, MemoryError):
            # As Pillow does.
            raise SyntaxError(raised) from raised
        raise raised

    monkeypatch.setattr("PIL.BmpImagePlugin.BmpImageFile.load", load)
    assert reject_of(save(photograph(), "BMP")).detail == f"BMP: cannot be decoded: {words}"


@pytest.mark.parametrize(
    ("max_side", "size"), [(64, (64, 48)), (1000, (64, 48)), (32, (32, 24)), (1, (1, 1))]
)
@pytest.mark.parametrize("data", [JPEG, PNG, GIF])
def test_images_are_only_ever_made_smaller(
    data: bytes, max_side: int, size: tuple[int, int]
) -> None:
    stored = check(data, ImageConfig(max_side=max_side))
    assert (stored.width, stored.height) == size
    assert Image.open(io.BytesIO(stored.data)).size == size
    assert (stored.file_width, stored.file_height) == (64, 48)
    assert (Correction.IMAGE_RESIZED in stored.corrections) == (size != (64, 48))


def test_the_longer_side_counts_whichever_it_is() -> None:
    stored = check(with_orientation(JPEG, 6), ImageConfig(max_side=32))
    assert (stored.width, stored.height) == (24, 32)
    assert tuple(stored.corrections) == (Correction.ORIENTATION_APPLIED, Correction.IMAGE_RESIZED)


def test_a_thin_image_keeps_a_pixel() -> None:
    stored = check(save(Image.new("RGB", (1000, 2)), "PNG"), ImageConfig(max_side=100))
    assert (stored.width, stored.height) == (100, 1)


@pytest.mark.parametrize(
    "settings", [ImageConfig(max_side=32), ImageConfig(max_side=32, encoding="png")]
)
@pytest.mark.parametrize("data", [GRAY_JPEG, GRAY_PNG, save(photograph().convert("1"), "PNG")])
def test_gray_images_stay_gray(data: bytes, settings: ImageConfig) -> None:
    assert Image.open(io.BytesIO(check(data, settings).data)).mode == "L"


def test_a_changed_encoding_is_a_conversion() -> None:
    as_png = check(with_orientation(JPEG, 3), ImageConfig(encoding="png"))
    assert tuple(as_png.corrections) == (Correction.IMAGE_CONVERTED, Correction.ORIENTATION_APPLIED)


def test_a_jpeg_has_no_room_for_a_very_long_side() -> None:
    long = save(Image.new("P", (70_000, 1)), "PNG")
    reject = reject_of(long)
    assert reject.reason is Reason.UNSUPPORTED_IMAGE
    assert "max_side" in reject.detail
    assert check(long, ImageConfig(encoding="png")).width == 70_000
    assert check(long, ImageConfig(max_side=100)).width == 100


@pytest.mark.parametrize("settings", [DEFAULTS, ImageConfig(encoding="png")])
def test_only_metadata_that_gives_pixels_their_meaning_is_kept(settings: ImageConfig) -> None:
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = save(
        photograph(),
        "WEBP",
        icc_profile=profile,
        exif=b"Exif\0\0" + exif(6),
        xmp=b"<x>somebody</x>",
    )
    image = Image.open(io.BytesIO(check(data, settings).data))
    image.load()
    assert image.info.pop("icc_profile") == profile
    assert set(image.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}


def test_comments_and_resolution_are_not_kept() -> None:
    data = save(photograph(), "JPEG", comment=b"by somebody", dpi=(300, 300))
    stored = check(with_orientation(data, 3))
    assert b"somebody" not in stored.data
    assert Image.open(io.BytesIO(stored.data)).info["jfif_density"] == (1, 1)


def test_a_profile_for_other_colours_is_dropped() -> None:
    profile = bytes(16) + b"CMYK" + bytes(200)
    data = save(photograph().convert("CMYK"), "JPEG", icc_profile=profile)
    assert "icc_profile" not in Image.open(io.BytesIO(check(data).data)).info


def test_checking_says_nothing(tmp_path: Path) -> None:
    """Pillow warns of the first file, and logs an error about the second; libtiff prints one."""
    invalid_animation = with_chunk(PNG, b"acTL", bytes(8))
    tiff = save(photograph(), "TIFF")
    samples_per_pixel = tiff.index(b"\x15\x01\x03\0")
    too_many_samples = tiff[: samples_per_pixel + 8] + b"\xff\xff" + tiff[samples_per_pixel + 10 :]
    compressed = bytearray(save(photograph(), "TIFF", compression="tiff_lzw"))
    compressed[200:400] = b"\xff" * 200
    damaged = (invalid_animation, too_many_samples, bytes(compressed))
    script = (
        "import pathlib, sys\n"
        "from shardbeam.transforms.core.errors import RejectedError\n"
        "from shardbeam.transforms.images.check import check_image\n"
        "from shardbeam.configs.schema import ImageConfig\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        data = pathlib.Path(path).read_bytes()\n"
        "        check_image(data, name=path, settings=ImageConfig())\n"
        "    except RejectedError as error:\n"
        "        print(error.reason.value)\n"
    )
    paths = [tmp_path / "animation.png", tmp_path / "samples.tiff", tmp_path / "codes.tiff"]
    for path, data in zip(paths, damaged, strict=True):
        path.write_bytes(data)
    done = subprocess.run(
        [sys.executable, "-c", script, *paths],
        capture_output=True,
        text=True,
        check=True,
        cwd=PROJECT_ROOT,
    )
    assert (done.stdout, done.stderr) == ("corrupt\ncorrupt\n", "")


def test_threads_and_repetition_give_the_same_bytes() -> None:
    inputs = [JPEG, PNG, GIF, with_orientation(JPEG, 5), save(photograph(), "WEBP")] * 20
    expected = [check(data) for data in inputs]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(check, inputs)) == expected


def test_codec_versions_name_what_decides_the_bytes() -> None:
    versions = codec_versions()
    assert versions["libjpeg_turbo"] == features.version("libjpeg_turbo")
    assert {"pillow", "simplejpeg", "webp"} <= set(versions)
    assert all(isinstance(version, str) and version for version in versions.values())

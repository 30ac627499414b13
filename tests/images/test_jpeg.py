from __future__ import annotations

import re
import struct

import numpy as np
import pytest
from PIL import UnidentifiedImageError

from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.core.reasons import Correction, Reason
from shardbeam.transforms.images.check import check_image
from shardbeam.transforms.images.jpeg import essential_jpeg, missing_scans, scan_jpeg
from tests.support.image_makers import (
    after_soi,
    photograph,
    pixels,
    save,
    segment,
    with_orientation,
    without_segment,
)

BASELINE = save(photograph(), "JPEG")
PROGRESSIVE = save(photograph(), "JPEG", progressive=True)
RESTARTS = save(photograph(width=256, height=192), "JPEG", restart_marker_blocks=4)


def frame(
    *, marker: int = 0xC0, precision: int = 8, height: int = 48, components: int = 3
) -> bytes:
    """BASELINE with another frame header."""
    start = BASELINE.index(b"\xff\xc0")
    (length,) = struct.unpack_from(">H", BASELINE, start + 2)
    content = struct.pack(">BHHB", precision, height, 64, components) + b"\1\x11\0" * components
    return BASELINE[:start] + segment(marker, content) + BASELINE[start + 2 + length :]


def reject_of(data: bytes, *, complete: bool = True) -> RejectedError:
    with pytest.raises(RejectedError) as caught:
        scan_jpeg(data, complete=complete)
    return caught.value


@pytest.mark.parametrize(
    ("data", "gray"),
    [
        (BASELINE, False),
        (PROGRESSIVE, False),
        (save(photograph().convert("L"), "JPEG"), True),
        (frame(marker=0xC1), False),
    ],
)
def test_common_files_are_storable(data: bytes, gray: bool) -> None:
    header = scan_jpeg(data, complete=True)
    # Coefficients of 64 x 48 samples, of which colour has a quarter twice.
    kept = 2 * 64 * 48 * 3 // 2 if data == PROGRESSIVE else 0
    assert (header.width, header.height) == (64, 48)
    assert (header.storable, header.gray) == (True, gray)
    assert header.coefficient_bytes == kept


@pytest.mark.parametrize(
    "data",
    [
        frame(marker=0xC3),
        frame(marker=0xC9),
        frame(marker=0xCA),
        frame(precision=12),
        frame(components=4),
        frame(components=2),
        save(photograph().convert("CMYK"), "JPEG"),
    ],
)
def test_other_files_are_not_storable(data: bytes) -> None:
    assert not scan_jpeg(data, complete=True).storable


@pytest.mark.parametrize("marker", [0xC5, 0xC6, 0xC7, 0xCB, 0xCD, 0xCE, 0xCF])
def test_frames_that_no_decoder_knows_are_unsupported(marker: int) -> None:
    assert reject_of(frame(marker=marker)).reason is Reason.UNSUPPORTED_IMAGE


def test_a_height_that_comes_later_is_unsupported() -> None:
    assert reject_of(frame(height=0)).reason is Reason.UNSUPPORTED_IMAGE


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xd8\xff\xd9",
        after_soi(BASELINE, b"\xff\xd8"),
        after_soi(BASELINE, segment(0xF0, b"")),
        after_soi(BASELINE, b"\xff\xdb\0\1"),
        after_soi(BASELINE, segment(0xC0, BASELINE[160:175])),
        after_soi(BASELINE, segment(0xC0, b"\x08\0\x10\0\x10\1\1\x11\0")),
        without_segment(BASELINE, 0xC0),
        frame(components=0),
    ],
)
def test_headers_that_make_no_sense_are_corrupt(data: bytes) -> None:
    assert reject_of(data).reason is Reason.CORRUPT


def test_every_header_that_ends_early_is_truncated() -> None:
    header_end = BASELINE.index(b"\xff\xda") + 14
    for length in range(3, header_end):
        assert reject_of(BASELINE[:length], complete=False).reason is Reason.TRUNCATED


def test_a_scan_without_parameters_at_the_end_is_no_crash() -> None:
    data = BASELINE[: BASELINE.index(b"\xff\xda")] + b"\xff\xda\0\2"
    assert reject_of(data).reason is Reason.TRUNCATED
    assert scan_jpeg(data, complete=False).coefficient_bytes > 0


def test_the_end_is_looked_for_only_if_asked() -> None:
    assert reject_of(BASELINE[:-2]).reason is Reason.TRUNCATED
    assert scan_jpeg(BASELINE[:-2], complete=False).width == 64


def test_the_end_of_a_thumbnail_is_not_the_end() -> None:
    data = after_soi(BASELINE, segment(0xE1, b"Exif\0\0" + BASELINE))
    assert reject_of(data[:-2]).reason is Reason.TRUNCATED


def test_what_follows_the_end_does_no_harm() -> None:
    assert scan_jpeg(BASELINE + b"trailer" * 100, complete=True).storable


def test_the_first_exif_orientation_holds() -> None:
    data = with_orientation(with_orientation(BASELINE, 3), 6)
    assert scan_jpeg(data, complete=True).orientation == 6


def test_an_orientation_between_frame_and_scan_is_read() -> None:
    start = BASELINE.index(b"\xff\xda")
    oriented = with_orientation(b"\xff\xd8", 8)[2:]
    data = BASELINE[:start] + oriented + BASELINE[start:]
    assert scan_jpeg(data, complete=True).orientation == 8


@pytest.mark.parametrize(
    "junk", [b"junk", b"\xff\xff\xff", b"\xff\0", b"\0\xff\0\xff\xff\0", b"\1"]
)
def test_junk_between_segments_is_skipped(junk: bytes) -> None:
    data = BASELINE[:20] + junk + BASELINE[20:]
    assert scan_jpeg(data, complete=True).storable
    assert essential_jpeg(data) == essential_jpeg(BASELINE)


@pytest.mark.parametrize("marker", [b"\xff\xfe", b"\xff\xe0", b"\xff\xef"])
@pytest.mark.parametrize("length", [b"\0\0", b"\0\1", b"\0\4", b"\0\7"])
def test_comments_of_a_wrong_length_are_read_as_pillow_reads_them(
    marker: bytes, length: bytes
) -> None:
    data = after_soi(BASELINE, marker + length + b"words")
    assert np.array_equal(pixels(data), pixels(BASELINE))
    assert check_image(data, name="", settings=ImageConfig()).data is data
    assert essential_jpeg(data) == essential_jpeg(BASELINE)


def test_restart_markers_between_segments_are_skipped() -> None:
    assert scan_jpeg(after_soi(BASELINE, b"\xff\xd0"), complete=True).storable


def before_end(data: bytes, junk: bytes) -> bytes:
    return data[:-2] + junk + data[-2:]


# As in frames of motion JPEG: every reader takes the tables of T.81, annex K.
WITHOUT_HUFFMAN_TABLES = BASELINE
while b"\xff\xc4" in WITHOUT_HUFFMAN_TABLES:
    WITHOUT_HUFFMAN_TABLES = without_segment(WITHOUT_HUFFMAN_TABLES, 0xC4)


@pytest.mark.parametrize("settings", [ImageConfig(), ImageConfig(damaged="keep")])
@pytest.mark.parametrize("data", [BASELINE, PROGRESSIVE, RESTARTS, WITHOUT_HUFFMAN_TABLES])
@pytest.mark.parametrize(
    "junk", [bytes(99), bytes(12), b"\x7f" * 5000, b"\xff\0" * 9, b"\xff\0" * 999]
)
def test_a_run_of_one_byte_before_the_end_is_counted(
    data: bytes, junk: bytes, settings: ImageConfig
) -> None:
    filled = before_end(data, junk)
    whole = check_image(data, name="", settings=settings)
    assert whole.data is data
    assert whole.corrections == {}
    stored = check_image(filled, name="", settings=settings)
    assert stored.data is filled
    assert "before marker 0xd9" in stored.corrections[Correction.JPEG_JUNK_KEPT][0]
    assert np.array_equal(pixels(filled), pixels(data))


@pytest.mark.parametrize(
    "data",
    [
        # Zeros instead of data.
        BASELINE[:-200] + bytes(2000) + BASELINE[-2:],
        PROGRESSIVE[:-200] + bytes(2000) + PROGRESSIVE[-2:],
        # Data that no block takes, before zeros and alone.
        before_end(before_end(BASELINE, BASELINE[-100:-2]), bytes(99)),
        before_end(BASELINE, BASELINE[-100:-2]),
        # Damage, and zeros.
        before_end(BASELINE[:-200] + BASELINE[-180:], bytes(99)),
        before_end(BASELINE[:-200] + BASELINE[-180:], b"\xff\0" * 99),
        BASELINE[:-200] + b"\xff\0" * 1000 + BASELINE[-2:],
    ],
)
def test_a_run_of_one_byte_hides_no_damage(data: bytes) -> None:
    with pytest.raises(RejectedError) as caught:
        check_image(data, name="", settings=ImageConfig())
    assert caught.value.reason is Reason.JPEG_DAMAGED


def tem_at(data: bytes, position: int) -> bytes:
    return data[:position] + b"\xff\x01" + data[position:]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        # Pillow opens no file with the marker in its header.
        (after_soi(BASELINE, b"\xff\x01"), Reason.CORRUPT),
        (tem_at(BASELINE, BASELINE.index(b"\xff\xda")), Reason.CORRUPT),
        # Readers lose pixels.
        (tem_at(BASELINE, len(BASELINE) - 100), Reason.JPEG_DAMAGED),
        (tem_at(RESTARTS, RESTARTS.index(b"\xff\xd1") + 2), Reason.JPEG_DAMAGED),
        # Readers show the same picture.
        (tem_at(RESTARTS, RESTARTS.index(b"\xff\xd1")), None),
        (tem_at(tem_at(RESTARTS, RESTARTS.index(b"\xff\xd1")), RESTARTS.index(b"\xff\xd1")), None),
        (tem_at(PROGRESSIVE, PROGRESSIVE.rindex(b"\xff\xc4")), None),
        (tem_at(BASELINE, len(BASELINE) - 2), None),
    ],
)
def test_the_marker_ff_01_is_judged_as_pillow_judges_it(data: bytes, reason: Reason | None) -> None:
    whole = pixels(data.replace(b"\xff\x01", b""))
    try:
        same = np.array_equal(pixels(data), whole)
    except UnidentifiedImageError:
        same = False
    assert same == (reason is None)
    if reason is None:
        assert check_image(data, name="", settings=ImageConfig()).data is data
    else:
        with pytest.raises(RejectedError) as caught:
            check_image(data, name="", settings=ImageConfig())
        assert caught.value.reason is reason


def test_essential_files_keep_tables_frame_and_data() -> None:
    data = with_orientation(after_soi(BASELINE, segment(0xFE, b"a comment")), 6)
    assert essential_jpeg(data) == without_segment(BASELINE, 0xE0)


def test_essential_sequential_scans_have_the_parameters_of_the_standard() -> None:
    parameters = BASELINE.index(b"\xff\xda") + 11
    data = BASELINE[:parameters] + b"\0\0\0" + BASELINE[parameters + 3 :]
    assert essential_jpeg(data) == without_segment(BASELINE, 0xE0)


def test_essential_progressive_scans_keep_their_parameters() -> None:
    assert essential_jpeg(PROGRESSIVE) == without_segment(PROGRESSIVE, 0xE0)


# Scans of progressive files


def scan_ends(data: bytes) -> list[int]:
    """Where each scan ends: Pillow writes tables before the next one, or the end."""
    starts = [match.start() for match in re.finditer(rb"\xff\xda", data)]
    return [
        starts[number] + found.start() + 2
        for number in range(len(starts))
        for found in [re.search(rb"\xff[\xc4\xd9\xda]", data[starts[number] + 2 :])]
        if found is not None
    ]


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("subsampling", [0, 2])
def test_a_progressive_file_that_lacks_scans_is_damaged(mode: str, subsampling: int) -> None:
    picture = photograph().convert(mode)
    data = save(picture, "JPEG", progressive=True, subsampling=subsampling)
    assert check_image(data, name="", settings=ImageConfig()).corrections == {}
    *ends, last = scan_ends(data)
    assert last == len(data) - 2
    assert len(ends) == {"RGB": 9, "L": 5}[mode]
    for end in ends:
        cut = data[:end] + data[-2:]
        # No reader complains.
        assert pixels(cut).shape == pixels(data).shape
        with pytest.raises(RejectedError) as caught:
            check_image(cut, name="", settings=ImageConfig())
        assert caught.value.reason is Reason.JPEG_DAMAGED
        assert "scans are missing: of component " in caught.value.detail
        kept = check_image(cut, name="", settings=ImageConfig(damaged="keep"))
        assert (kept.data, (*kept.corrections,)) == (cut, (Correction.JPEG_DAMAGE_KEPT,))
        assert "scans are missing" in kept.corrections[Correction.JPEG_DAMAGE_KEPT][0]


def test_junk_does_not_hide_that_scans_are_missing() -> None:
    end = scan_ends(PROGRESSIVE)[4]
    with pytest.raises(RejectedError, match="scans are missing"):
        check_image(
            PROGRESSIVE[:end] + bytes(99) + PROGRESSIVE[-2:], name="", settings=ImageConfig()
        )


def scans(marker: int, *headers: tuple[bytes, int, int, int]) -> bytes:
    """A file of three components with the scans' headers alone: (components, Ss, Se, Ah and Al)."""
    content = struct.pack(">BHHB", 8, 48, 64, 3) + b"\1\x11\0\2\x11\0\3\x11\0"
    return b"".join(
        [
            b"\xff\xd8",
            segment(marker, content),
            *(
                segment(
                    0xDA,
                    bytes([len(ids)]) + b"".join(bytes([each, 0]) for each in ids) + bytes(rest),
                )
                + b"data"
                for ids, *rest in headers
            ),
            b"\xff\xd9",
        ]
    )


ALL = b"\1\2\3"
DC = (ALL, 0, 0, 0)
AC = [(bytes([each]), 1, 63, 0) for each in ALL]


@pytest.mark.parametrize(
    ("data", "missing"),
    [
        # In the manner of libjpeg, of encoders with spectral selection alone, and of those that
        # search for the best scans.
        (scans(0xC2, DC, *AC), ""),
        (scans(0xC2, DC, (b"\1", 1, 5, 0), (b"\1", 6, 63, 0), *AC[1:]), ""),
        (scans(0xC2, (b"\1", 0, 0, 0), (b"\2\3", 0, 0, 0), *AC), ""),
        (scans(0xC2, (ALL, 0, 0, 1), *AC, (ALL, 0, 0, 0x10)), ""),
        (scans(0xC2, DC, (b"\1", 1, 63, 2), (b"\1", 1, 63, 0x21), *AC), ""),
        (scans(0xC0, (b"\1", 0, 63, 0), (b"\2\3", 0, 63, 0)), ""),
        # Some cameras leave the parameters of sequential scans zero.
        (scans(0xC1, (b"\1", 0, 0, 0), (b"\2\3", 0, 0, 0)), ""),
        (scans(0xC2, DC), "component 1, 63 of 64 coefficients are not in the file, and 0 come"),
        (scans(0xC2, (ALL, 0, 0, 1), *AC), "component 1, 0 of 64 coefficients are not in the"),
        (scans(0xC2, DC, AC[0], (b"\2", 1, 40, 0), AC[2]), "component 2, 23 of 64"),
        (scans(0xC2, DC, *AC[:2], (b"\3", 1, 63, 1)), "and 63 come without their lowest bits"),
        (scans(0xC2, DC, *AC[:2], (b"\7", 1, 63, 0)), "component 3, 63 of 64"),
        (scans(0xC0, (b"\1", 0, 63, 0), (b"\2", 0, 63, 0)), "component 3, 64 of 64"),
        (scans(0xC2, (b"", 0, 0, 0)), "component 1, 64 of 64"),
        (scans(0xC2)[:-2] + segment(0xDA, b"\3\1\0\2\0\3\0") + b"\xff\xd9", "1, 64 of 64"),
    ],
)
def test_what_scans_bring(data: bytes, missing: str) -> None:
    said = missing_scans(data)
    assert said is None if not missing else said is not None and missing in said

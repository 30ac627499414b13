"""Duplicates: which planted ones are found, and what looking for them takes."""

from __future__ import annotations

import hashlib
import io
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from PIL import Image, ImageEnhance

from benchmarks.report import markdown_table
from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.duplicates.near_duplicates import (
    Groups,
    count_partitions,
    group_rows,
    match_rows,
    pack_rows,
    split_places,
)
from shardbeam.transforms.images.check import check_image

_NEAR = 3
# Smaller files among the samples are drawings and icons; larger ones take long.
_SIDES_PX = (100, 2500)
# Pictures whose thumbnails correlate by less are different ones.
_SAME_PICTURE = 0.9
_THUMBNAIL_PX = 32
_ROWS_PER_SHARD = 1_100
_ROW_STEPS = (100, 10, 1)
# Of a hundred rows, one is planted.
_PLANTED = 100


class _Photograph(NamedTuple):
    image: Image.Image
    dhash: int | None
    thumbnail: npt.NDArray[np.float64]


def run_duplicates(*, photographs: Path, rows: int) -> str:
    """Plants duplicates among real photographs, and matches ever more synthetic hashes.

    Args:
        photographs: A folder with JPEG files, at any depth.
        rows: The most rows that are matched.

    Returns:
        Markdown.
    """
    steps = [_measure(rows // step) for step in _ROW_STEPS]
    slopes = markdown_table(
        ["rows", "planted", "found", "pack, s", "match, s", "group, s", "µs a row"], steps
    )
    found = (
        _run_photographs(photographs)
        if photographs.is_dir()
        else f"No photographs were planted: {photographs} is not there.\n"
    )
    return f"## Duplicates\n\n{found}\n{slopes}"


def _run_photographs(folder: Path) -> str:
    originals = [_describe(image) for image in _read_photographs(folder)]
    hashed = [photograph for photograph in originals if photograph.dhash is not None]
    rows = []
    everything = list(hashed)
    for name, (change, file_format) in CHANGES.items():
        changed = [_describe(change(photograph.image), file_format) for photograph in hashed]
        everything += changed
        found = [_differ(one, other) <= _NEAR for one, other in zip(hashed, changed, strict=True)]
        rows.append((name, f"{len(found):,}", f"{sum(found) / len(found):.1%}"))
    pairs = list(itertools.combinations(everything, 2))
    near = [(one, other) for one, other in pairs if _differ(one, other) <= _NEAR]
    false = sum(_correlation(one, other) < _SAME_PICTURE for one, other in near)
    return (
        f"{len(originals):,} photographs, of which {len(originals) - len(hashed)} are flat. With "
        f"what was planted these are {len(pairs):,} pairs: {len(near):,} are found, {false} of "
        f"them of different pictures (thumbnails that correlate by less than {_SAME_PICTURE}).\n\n"
        + markdown_table(["planted", "pairs", "found"], rows)
    )


def _read_photographs(folder: Path) -> Iterator[Image.Image]:
    seen = set()
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in (".jpg", ".jpeg") or not path.is_file():
            continue
        data = path.read_bytes()
        digest = hashlib.sha256(data).digest()
        try:
            stored = check_image(data, name="", settings=ImageConfig())
        except RejectedError:
            continue
        smallest, largest = _SIDES_PX
        if digest in seen or not smallest <= min(stored.width, stored.height) <= largest:
            continue
        seen.add(digest)
        if max(stored.width, stored.height) <= largest:
            yield Image.open(io.BytesIO(stored.data)).convert("RGB")


def _describe(image: Image.Image, file_format: str = "JPEG") -> _Photograph:
    buffer = io.BytesIO()
    image.save(buffer, file_format, quality=95)
    stored = check_image(buffer.getvalue(), name="", settings=ImageConfig())
    small = image.convert("L").resize((_THUMBNAIL_PX, _THUMBNAIL_PX), Image.Resampling.BOX)
    return _Photograph(image, stored.look.dhash, np.asarray(small, np.float64).ravel())


def _unchanged(image: Image.Image) -> Image.Image:
    return image


def _at_quality_50(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=50)
    return Image.open(buffer)


def _at_half_the_size(image: Image.Image) -> Image.Image:
    return image.resize((image.width // 2, image.height // 2), Image.Resampling.LANCZOS)


def _brighter(image: Image.Image) -> Image.Image:
    return ImageEnhance.Brightness(image).enhance(1.2)


# {what is planted: how it is made, and the format of its file}
CHANGES: dict[str, tuple[Callable[[Image.Image], Image.Image], str]] = {
    "JPEG of quality 50": (_at_quality_50, "JPEG"),
    "half the size": (_at_half_the_size, "JPEG"),
    "20 % brighter": (_brighter, "JPEG"),
    "PNG": (_unchanged, "PNG"),
}


def _differ(one: _Photograph, other: _Photograph) -> int:
    if one.dhash is None or other.dhash is None:
        return 64
    return (one.dhash ^ other.dhash).bit_count()


def _correlation(one: _Photograph, other: _Photograph) -> float:
    return float(np.corrcoef(one.thumbnail, other.thumbnail)[0, 1])


def _measure(number: int) -> tuple[str, ...]:
    rng = np.random.default_rng(0)
    hashes = rng.integers(0, 1 << 64, number, dtype=np.uint64)
    planted = number // _PLANTED
    originals, copies = np.arange(planted), number - 1 - np.arange(planted)
    bits = np.uint64(1) << rng.integers(0, 64, (_NEAR, planted), dtype=np.uint64)
    hashes[copies] = hashes[originals] ^ np.bitwise_or.reduce(bits)
    indexes = [_make_index(hashes, start) for start in range(0, number, _ROWS_PER_SHARD)]
    times = [time.process_time()]
    packed: dict[tuple[int, int], list[bytes]] = {}
    for shard, index in enumerate(indexes):
        partitions = count_partitions(number)
        for key, rows in pack_rows(index, split=0, shard=shard, partitions=partitions, near=True):
            packed.setdefault(key, []).append(rows)
    times.append(time.process_time())
    matches = [match_rows(space, rows, near=_NEAR) for (space, _), rows in packed.items()]
    times.append(time.process_time())
    groups = group_rows(match.links for match in matches)
    times.append(time.process_time())
    group_of = _groups_by_row(groups)
    found = sum(
        group_of.get(one) is not None and group_of.get(one) == group_of.get(other)
        for one, other in zip(originals.tolist(), copies.tolist(), strict=True)
    )
    return (
        f"{number:,}",
        f"{planted:,}",
        f"{found:,}",
        *(f"{after - before:.2f}" for before, after in itertools.pairwise(times)),
        f"{(times[-1] - times[0]) / number * 1e6:.1f}",
    )


def _make_index(hashes: npt.NDArray[np.uint64], start: int) -> pa.Table:
    """Makes the index of one shard, of different files."""
    part = hashes[start : start + _ROWS_PER_SHARD]
    numbers = range(start, start + len(part))
    return pa.table(
        {
            "key": [f"{number}.jpg" for number in numbers],
            "source": ["source"] * len(part),
            "sha256": [f"{number:016x}" + "0" * 48 for number in numbers],
            "labels": ["0" * 16] * len(part),
            "classes_digest": [""] * len(part),
            "dhash": part,
        }
    )


def _groups_by_row(groups: Groups) -> dict[int, int]:
    _, shards, rows = split_places(groups.places)
    return dict(
        zip((shards * _ROWS_PER_SHARD + rows).tolist(), groups.groups.tolist(), strict=True)
    )

"""What `plan` and `build` hold in memory: how much for each image, in each kind of dataset."""

from __future__ import annotations

import csv
import dataclasses
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.datasets import Dataset, make_coco_like, make_once
from benchmarks.measure import SHARDBEAM, measure
from benchmarks.report import markdown_table, megabytes

COMMANDS = ("plan", "build")
# The smaller of the two numbers of images.
_FEWER = 30_000
_CLASSES = 80
# As many as images of 150 KB fill by default. The process that writes a shard holds its records.
_IMAGES_PER_SHARD = 1000

_INTRODUCTION = """\
Peak of anonymous memory, which is what processes hold beyond the pages of files (`RssAnon`, sampled
every 50 ms), of the whole program with its imports; in process, `--processes 1`,
`image.verify=none`, images of 1,358 bytes, a shard for each 1,000 of them. What an image takes is
the difference between the two peaks, divided by that between the numbers of images.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Kind:
    """A kind of dataset.

    Attributes:
        name: Its name in the table.
        objects: The number of objects in each image, on the average.
        flags: The words and flags that follow `plan` or `build`.
    """

    name: str
    objects: float
    flags: Sequence[str]


def run_memory(*, data: Path, images: int) -> str:
    """Measures `plan` and `build` on two numbers of images.

    Args:
        data: Folder of the benchmarks' data.
        images: The larger number of images.

    Returns:
        Markdown.
    """
    numbers = (min(_FEWER, images // 2), images)
    # {(kind, command): [bytes at the peak, for each number of images]}
    peaks: dict[tuple[str, str], list[int]] = {}
    objects: dict[str, float] = {}
    for number in numbers:
        for kind in _kinds(data, images=number):
            objects[kind.name] = kind.objects
            for command in COMMANDS:
                peak = _measure(command, kind, images=number, data=data)
                peaks.setdefault((kind.name, command), []).append(peak)
                print(
                    f"memory: {kind.name}, {command}, {number:,} images: {megabytes(peak)} MB",
                    file=sys.stderr,
                )
    table = markdown_table(
        [
            "input",
            "command",
            "objects an image",
            *(f"{number:,} images, MB" for number in numbers),
            "KB an image",
        ],
        _rows(peaks, objects=objects, numbers=numbers),
    )
    return "\n".join(["## Memory\n", _INTRODUCTION, table])


def _rows(
    peaks: Mapping[tuple[str, str], Sequence[int]],
    *,
    objects: Mapping[str, float],
    numbers: tuple[int, int],
) -> Iterator[tuple[str, ...]]:
    fewer, more = numbers
    for (name, command), (low, high) in peaks.items():
        each = (high - low) / (more - fewer)
        cells = (megabytes(low), megabytes(high), f"{each / 1e3:.1f}")
        yield name, f"`{command}`", f"{objects[name]:.1f}", *cells


def _kinds(data: Path, *, images: int) -> Iterator[_Kind]:
    dataset = make_coco_like(data, images=images)
    folders = make_once(
        data / f"class-folders-{images}", make=lambda folder: _link_folders(dataset, folder)
    )
    table = make_once(data / f"table-{images}", make=lambda folder: _write_table(dataset, folder))
    coco = ("coco", "--images", str(dataset.images), "--annotations", str(dataset.annotations))
    # The generator's annotations are those of COCO, in proportion.
    objects = dataset.annotations.read_bytes().count(b'"category_id"') / images
    yield _Kind(name="class folders", objects=0, flags=("image-folder", "--images", str(folders)))
    yield _Kind(
        name="CSV table: path, label and a number",
        objects=0,
        flags=(
            *("csv", "--manifest", str(table / "table.csv"), "--image-root", str(dataset.images)),
            *("--image-column", "image", "--label-column", "label"),
        ),
    )
    yield _Kind(name="COCO, boxes", objects=objects, flags=coco)
    yield _Kind(name="COCO, boxes and masks", objects=objects, flags=(*coco, "--set", "masks=png"))


def _link_folders(dataset: Dataset, folder: Path) -> None:
    folders = [folder / f"class {number:02d}" for number in range(_CLASSES)]
    for below in folders:
        below.mkdir(parents=True)
    for image, below in zip(dataset.images.iterdir(), itertools.cycle(folders), strict=False):
        os.link(image, below / image.name)


def _write_table(dataset: Dataset, folder: Path) -> None:
    folder.mkdir()
    with (folder / "table.csv").open("w", newline="", encoding="ascii") as file:
        writer = csv.writer(file)
        writer.writerow(["image", "label", "score"])
        for number, image in enumerate(sorted(dataset.images.iterdir())):
            writer.writerow([image.name, f"class {number % _CLASSES:02d}", number / 1000])


def _measure(command: str, kind: _Kind, *, images: int, data: Path) -> int:
    shards = max(1, images // _IMAGES_PER_SHARD)
    with tempfile.TemporaryDirectory(dir=data, prefix="output-") as temporary:
        words = (
            *(SHARDBEAM, command, *kind.flags, "--output", str(Path(temporary, "out"))),
            *("--set", "image.verify=none", "--set", f"output.num_shards={shards}"),
            *("--json", "--processes", "1"),
        )
        return measure(words).peak_anonymous_bytes

"""Whole builds side by side: Shardbeam, the naive Beam graph, tensorflow-datasets and `cp`."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.measure import Measurement, measure
from benchmarks.report import markdown_table, median_and_range, megabytes, target_row
from benchmarks.shapes_data import SHARDBEAM, Dataset, make_shapes, take_first

# Of the default size for 8,000 images of 135 KB.
SHARDS = 8
# As many as the machine that the targets were set on has CPUs.
THREADS = 2

HEADER = "Shardbeam, `verify=header`"
DECODE = "Shardbeam, `verify=decode`"
NAIVE = "naive Beam: `Map(encode)`, `WriteToTFRecord`"
TFDS = "tensorflow-datasets"
COPY = "`cp -r`"
SIMPLEJPEG_LOOP = f"{THREADS} threads of simplejpeg alone"
PILLOW_LOOP = f"{THREADS} threads of Pillow alone"

_PEAK_TARGET_BYTES = 400_000_000
# More than this between a quarter of the images and all of them is growth.
_FLAT_BYTES = 50_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """A process to measure.

    Attributes:
        name: What the tables call it.
        dataset: What it works on.
        command: How it is started; what it writes goes below one folder. Its last line of output
            may be a JSON object that tells `images_per_s`, without start-up and imports.
    """

    name: str
    dataset: Dataset
    command: Sequence[str]


class Result:
    """All measurements of one contender."""

    def __init__(self, contender: Contender, measurements: Sequence[Measurement]) -> None:
        self.dataset = contender.dataset
        self.wall_times_s = [each.wall_time_s for each in measurements]
        self.peak_bytes = max(each.peak_bytes() for each in measurements)
        self._told = [
            json.loads(each.stdout.splitlines()[-1])["images_per_s"]
            for each in measurements
            if each.stdout
        ]

    @property
    def wall_time_s(self) -> float:
        """The median."""
        return statistics.median(self.wall_times_s)

    @property
    def images_per_s(self) -> float:
        """Of the whole process."""
        return self.dataset.count / self.wall_time_s

    @property
    def told_images_per_s(self) -> float:
        """As the contender itself says, without its imports; of one that does not, as seen."""
        return statistics.median(self._told) if self._told else self.images_per_s


Results = Mapping[tuple[str, int], Result]


def run_images(*, data: Path, images: int, rounds: int) -> str:
    """Measures all contenders.

    Args:
        data: Folder of the benchmarks' data.
        images: How many.
        rounds: How often each runs, in turn with the others.

    Returns:
        Markdown.
    """
    large = make_shapes(data, images=images)
    small = take_first(large, images=max(1, images // 4))
    output = data / "output"
    contenders = list(_contenders(large, small, output=output))
    measurements: dict[tuple[str, int], list[Measurement]] = {}
    for number in range(1, rounds + 1):
        for contender in contenders:
            shutil.rmtree(output, ignore_errors=True)
            output.mkdir()
            contender.dataset.read_all()
            measured = measure(contender.command)
            identity = contender.name, contender.dataset.count
            measurements.setdefault(identity, []).append(measured)
            print(
                f"images, round {number} of {rounds}: {contender.name}, "
                f"{contender.dataset.count} images: {measured.wall_time_s:.1f} s",
                file=sys.stderr,
            )
    shutil.rmtree(output, ignore_errors=True)
    results = {
        (contender.name, contender.dataset.count): Result(
            contender, measurements[contender.name, contender.dataset.count]
        )
        for contender in contenders
    }
    mean_kb = large.num_bytes() / large.count / 1e3
    return "\n".join(
        [
            "## Images",
            "",
            f"{images:,} images of {mean_kb:.0f} KB on the average, 640×480, from `shardbeam "
            f"sample shapes`. Each contender is a process of its own, timed from its start to its "
            f"exit; {rounds} rounds, one contender after the other in each: median (least–most). "
            "Before each run all images are read once, so that they are in the page cache, and "
            "what others have written is synced. Memory: the most that the resident sets of the "
            "process and its children added up to, sampled every 50 ms, of all rounds. "
            "Shardbeam syncs what it writes to the disk before it commits; the others do not.",
            "",
            _results_table(results),
            _targets_table(results, large=large.count, small=small.count),
        ]
    )


def _contenders(large: Dataset, small: Dataset, *, output: Path) -> Iterator[Contender]:
    for dataset in (small, large):
        for name, verify in ((HEADER, "header"), (DECODE, "decode")):
            yield Contender(
                name=name,
                dataset=dataset,
                command=[
                    *(SHARDBEAM, "build", "coco", "--json", "--threads", str(THREADS)),
                    *("--images", str(dataset.images), "--annotations", str(dataset.annotations)),
                    *("--output", str(output / "coco"), "--set", f"image.verify={verify}"),
                    *("--set", f"output.num_shards={min(SHARDS, dataset.count)}"),
                ],
            )
    modules = {NAIVE: "benchmarks.naive_beam"}
    # It cannot be installed beside Beam on Python 3.10.
    if importlib.util.find_spec("tensorflow_datasets") is not None:
        modules[TFDS] = "benchmarks.tfds_builder"
    for name, module in modules.items():
        arguments = [str(large.images), str(large.annotations), str(output), str(SHARDS)]
        yield Contender(
            name=name, dataset=large, command=[sys.executable, "-m", module, *arguments]
        )
    yield Contender(
        name=COPY, dataset=large, command=["cp", "-r", str(large.images), str(output / "copy")]
    )
    for name, decoder in ((SIMPLEJPEG_LOOP, "simplejpeg"), (PILLOW_LOOP, "pillow")):
        arguments = [decoder, str(large.images), str(THREADS)]
        yield Contender(
            name=name,
            dataset=large,
            command=[sys.executable, "-m", "benchmarks.decode_loop", *arguments],
        )


def _results_table(results: Results) -> str:
    return markdown_table(
        [
            "contender",
            "images",
            "wall time, s",
            "images/s, whole process",
            "images/s without imports",
            "peak memory, MB",
        ],
        (
            [
                name,
                f"{images:,}",
                median_and_range(result.wall_times_s),
                f"{result.images_per_s:,.0f}",
                f"{result.told_images_per_s:,.0f}",
                megabytes(result.peak_bytes),
            ]
            for (name, images), result in results.items()
        ),
    )


def _targets_table(results: Results, *, large: int, small: int) -> str:
    header, decode = results[HEADER, large], results[DECODE, large]
    rows = []
    for name, target in ((TFDS, 2.5), (NAIVE, 7.0)):
        other = results.get((name, large))
        if other is not None:
            ratio = other.wall_time_s / header.wall_time_s
            rows.append(
                target_row(
                    f"`header`, times as fast as {name}, whole process",
                    measured=f"{ratio:.1f}",
                    target=f"≥ {target}",
                    reached=ratio >= target,
                )
            )
    for name, target in ((SIMPLEJPEG_LOOP, 0.75), (PILLOW_LOOP, 1.0)):
        bound = results[name, large].told_images_per_s
        for what, images_per_s in (
            ("without imports", decode.told_images_per_s),
            ("whole process", decode.images_per_s),
        ):
            share = images_per_s / bound
            rows.append(
                target_row(
                    f"`decode`, {what}, images/s of {name}",
                    measured=f"{share:.0%}",
                    target=f"≥ {target:.0%}",
                    reached=share >= target,
                )
            )
    for name in (HEADER, DECODE):
        peak, small_peak = results[name, large].peak_bytes, results[name, small].peak_bytes
        rows.append(
            target_row(
                f"{name}: peak memory, MB",
                measured=megabytes(peak),
                target=f"≤ {megabytes(_PEAK_TARGET_BYTES)}",
                reached=peak <= _PEAK_TARGET_BYTES,
            )
        )
        rows.append(
            target_row(
                f"{name}: growth from {small:,} to {large:,} images, MB",
                measured=megabytes(peak - small_peak),
                target=f"≤ {megabytes(_FLAT_BYTES)}",
                reached=peak - small_peak <= _FLAT_BYTES,
            )
        )
    return markdown_table(["target", "measured", "wanted", "reached"], rows)

"""Whole builds side by side: Shardbeam, the naive Beam graph, tensorflow-datasets and `cp`."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.datasets import Dataset, make_shapes, take_first
from benchmarks.measure import SHARDBEAM, Measurement, measure
from benchmarks.report import markdown_table, median_and_range, megabytes, target_row

# What Shardbeam makes by itself of 8,000 images of 135 KB.
SHARDS = 8

HEADER = "Shardbeam, `verify=header`"
DECODE = "Shardbeam, `verify=decode`"
NAIVE = "naive Beam: `Map(encode)`, `WriteToTFRecord`"
TFDS = "tensorflow-datasets, without Beam"
COPY = "`cp -r`"
# How many processes `header` is tried with, beside as many as it takes by itself.
PROCESSES = (1, 2, 4)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Contender:
    """A process to measure.

    Attributes:
        name: What the tables call it.
        dataset: What it works on.
        command: How it is started. If it prints anything, the last line is a JSON object that
            tells `images_per_s`, its imports left out.
    """

    name: str
    dataset: Dataset
    command: tuple[str, ...]


def with_processes(count: int) -> str:
    """Names the build with `header` and that many processes."""
    return f"{HEADER}, `--processes {count}`"


def list_contenders(
    *, large: Dataset, small: Dataset, tiny: Dataset, output: Path
) -> Iterator[Contender]:
    """Lists all contenders.

    Args:
        large: What all work on.
        small: What Shardbeam works on as well, to show whether its memory grows.
        tiny: A few images, to show what starting costs.
        output: An existing, empty folder for what they write.
    """

    def build(name: str, dataset: Dataset, *words: str) -> Contender:
        return Contender(
            name=name,
            dataset=dataset,
            command=(
                *(SHARDBEAM, "build", "coco", "--json"),
                *("--images", str(dataset.images), "--annotations", str(dataset.annotations)),
                *("--output", str(output / "coco")),
                *("--set", f"output.num_shards={min(SHARDS, dataset.count)}", *words),
            ),
        )

    header = ("--set", "image.verify=header")
    yield build(HEADER, tiny, *header)
    for dataset in (small, large):
        yield build(HEADER, dataset, *header)
        yield build(DECODE, dataset, "--set", "image.verify=decode")
    for count in PROCESSES:
        yield build(with_processes(count), large, *header, "--processes", str(count))
    others = (str(large.images), str(large.annotations), str(output), str(SHARDS))
    yield _module(NAIVE, large, "benchmarks.naive_beam", *others)
    # On Python 3.10 it cannot be installed beside Beam.
    if importlib.util.find_spec("tensorflow_datasets") is not None:
        yield _module(TFDS, large, "benchmarks.tfds_builder", *others)
    yield Contender(
        name=COPY, dataset=large, command=("cp", "-r", str(large.images), str(output / "copy"))
    )


def _module(name: str, dataset: Dataset, module: str, *arguments: str) -> Contender:
    command = (sys.executable, "-m", module, *arguments)
    return Contender(name=name, dataset=dataset, command=command)


# For the row that shows what starting takes.
_TINY_IMAGES = 8
_PEAK_TARGET_BYTES = 400_000_000
# Memory that grows by more than this from a quarter of the images to all of them is not flat.
_FLAT_BYTES = 50_000_000


class Result:
    """All measurements of one contender.

    Attributes:
        measurements: A measurement for each round.
        wall_time_s: The median.
        peak_bytes: The most of all rounds.
        images_per_s: Of the whole process.
        told_images_per_s: As the contender itself tells, its imports left out; of one that
            tells nothing (and imports nothing), of the whole process.
    """

    def __init__(self, measurements: Sequence[Measurement], *, images: int) -> None:
        self.measurements = measurements
        self.wall_time_s = statistics.median(each.wall_time_s for each in measurements)
        self.peak_bytes = max(each.peak_bytes for each in measurements)
        self.images_per_s = images / self.wall_time_s
        told = [
            json.loads(each.stdout.splitlines()[-1])["images_per_s"]
            for each in measurements
            if each.stdout
        ]
        self.told_images_per_s = statistics.median(told) if told else self.images_per_s


# {(contender, images): result}
Results = Mapping[tuple[str, int], Result]


def run_images(*, data: Path, images: int, rounds: int) -> str:
    """Measures all contenders.

    Args:
        data: Folder of the benchmarks' data.
        images: How many.
        rounds: How often each contender runs, in turn with the others.

    Returns:
        Markdown.
    """
    large = make_shapes(data, images=images)
    small = take_first(large, images=images // 4)
    tiny = take_first(large, images=_TINY_IMAGES)
    results = _measure_all(large=large, small=small, tiny=tiny, rounds=rounds)
    introduction = (
        f"{images:,} images of {large.mean_image_bytes() / 1e3:.0f} KB on the average, 640 x 480, "
        f"from `shardbeam sample shapes`; rounds: {rounds}, in each one contender after another. "
        "Shardbeam syncs its files to the disk before it commits them; the others leave that to "
        f"the system. {_TINY_IMAGES} images show what starting takes.\n"
    )
    targets = markdown_table(
        ["target", "measured", "wanted", "reached"],
        _target_rows(results, large=large.count, small=small.count),
    )
    return "\n".join(["## Images\n", introduction, _results_table(results), targets])


def _measure_all(*, large: Dataset, small: Dataset, tiny: Dataset, rounds: int) -> Results:
    # Room for what most contenders write, and for what they hold in memory.
    touch_bytes = round(3 * large.mean_image_bytes() * large.count)
    measured: dict[Contender, list[Measurement]] = {}
    with tempfile.TemporaryDirectory(dir=large.folder.parent, prefix="output-") as temporary:
        output = Path(temporary) / "output"
        contenders = list(list_contenders(large=large, small=small, tiny=tiny, output=output))
        for number in range(1, rounds + 1):
            for contender in contenders:
                output.mkdir()
                contender.dataset.read_all()
                measurement = measure(contender.command, touch_bytes=touch_bytes)
                shutil.rmtree(output)
                measured.setdefault(contender, []).append(measurement)
                print(
                    f"images, round {number} of {rounds}: {contender.name}, "
                    f"{contender.dataset.count:,} images: {measurement.wall_time_s:.1f} s",
                    file=sys.stderr,
                )
    return {
        (contender.name, contender.dataset.count): Result(
            measurements, images=contender.dataset.count
        )
        for contender, measurements in measured.items()
    }


def _results_table(results: Results) -> str:
    return markdown_table(
        [
            "contender",
            "images",
            "wall time, s",
            "CPU time, s",
            "images/s, whole process",
            "images/s without imports",
            "peak memory, MB",
        ],
        (
            (
                name,
                f"{images:,}",
                median_and_range([each.wall_time_s for each in result.measurements]),
                median_and_range([each.cpu_time_s for each in result.measurements]),
                f"{result.images_per_s:,.0f}",
                f"{result.told_images_per_s:,.0f}",
                megabytes(result.peak_bytes),
            )
            for (name, images), result in results.items()
        ),
    )


def _target_rows(results: Results, *, large: int, small: int) -> Iterator[tuple[str, ...]]:
    header, decode = results[HEADER, large], results[DECODE, large]
    for ours, verify, name, target in (
        (header, "header", TFDS, 2.0),
        (decode, "decode", TFDS, 0.9),
        (header, "header", NAIVE, 5.5),
    ):
        if (name, large) in results:
            ratio = results[name, large].wall_time_s / ours.wall_time_s
            yield target_row(
                f"`{verify}`, whole process: times as fast as {name}",
                measured=f"{ratio:.1f}",
                target=f"≥ {target:.1f}",
                reached=ratio >= target,
            )
    for name in (HEADER, DECODE):
        peak = results[name, large].peak_bytes
        growth = peak - results[name, small].peak_bytes
        yield target_row(
            f"{name}: peak memory, MB",
            measured=megabytes(peak),
            target=f"≤ {megabytes(_PEAK_TARGET_BYTES)}",
            reached=peak <= _PEAK_TARGET_BYTES,
        )
        yield target_row(
            f"{name}: growth of the peak from {small:,} to {large:,} images, MB",
            measured=megabytes(growth),
            target=f"≤ {megabytes(_FLAT_BYTES)}",
            reached=growth <= _FLAT_BYTES,
        )

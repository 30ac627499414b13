"""Who takes part in the comparison of whole builds."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path

from benchmarks.datasets import Dataset
from benchmarks.measure import SHARDBEAM

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

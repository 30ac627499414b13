"""Builds with masks of objects, side by side: Shardbeam and the TF Model Garden's script.

The script is `create_coco_tf_record.py` of tf-models-official, with `--include_masks` and as many
processes as CPUs, its default. It is installed into an environment of its own below the
benchmarks' data, 3 GB, since its libraries are not Shardbeam's; it does not check images.
"""

from __future__ import annotations

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from benchmarks.contenders import DECODE, HEADER, SHARDS, Contender
from benchmarks.datasets import Dataset, make_shapes, take_first
from benchmarks.images import Result
from benchmarks.measure import SHARDBEAM, Measurement, measure
from benchmarks.report import markdown_table, median_and_range, megabytes, target_row
from shardbeam.transforms.containers.tfrecord import read_records
from shardbeam.transforms.examples.example_pb2 import Example

# What Beam 2.77's protobuf and Python 3.11 to 3.13 go with.
_PACKAGE = "tf-models-official==2.20.0"
_SCRIPT = "official.vision.data.create_coco_tf_record"
MODEL_GARDEN = f"Model Garden: `{_SCRIPT.rpartition('.')[2]}.py --include_masks`"
_FOLDER, _READY = "model-garden", "ready"
_TARGET = 2.0
# Images whose masks are compared, pixel by pixel.
_COMPARED = 100


def run_masks(*, data: Path, images: int, rounds: int) -> str:
    """Measures builds with masks.

    Args:
        data: Folder of the benchmarks' data.
        images: How many images the sample has; a quarter of them is taken.
        rounds: How often each contender runs, in turn with the others.

    Returns:
        Markdown.

    Raises:
        RuntimeError: The masks are not the same, or the script cannot be installed.
    """
    python = _install(data)
    dataset = take_first(make_shapes(data, images=images), images=images // 4)
    results, masks = _measure_all(dataset, python=python, rounds=rounds)
    introduction = (
        f"{dataset.count:,} images of {dataset.mean_image_bytes() / 1e3:.0f} KB on the average, "
        f"640 x 480, with {masks:,} masks; rounds: {rounds}, in each one contender after another. "
        f"{_PACKAGE}, in an environment of its own. The masks of {min(_COMPARED, dataset.count)} "
        "images were compared: they are the same, pixel by pixel.\n"
    )
    return "\n".join(["## Masks\n", introduction, _results_table(results), _targets_table(results)])


def find_model_garden(data: Path) -> Path | None:
    """Returns the Python of the Model Garden's environment; None if it is not installed."""
    folder = data / _FOLDER
    return folder / "bin" / "python" if (folder / _READY).exists() else None


def model_garden_command(
    dataset: Dataset, *, python: Path, prefix: Path, shards: int, masks: bool
) -> tuple[str, ...]:
    """Returns the command of the script.

    Args:
        dataset: What it works on.
        python: The Python of its environment.
        prefix: How the paths of its shards begin.
        shards: How many.
        masks: Whether it writes masks.
    """
    return (
        *(str(python), "-m", _SCRIPT, *(["--include_masks"] if masks else [])),
        *("--image_dir", str(dataset.images)),
        *("--object_annotations_file", str(dataset.annotations)),
        *("--output_file_prefix", str(prefix), "--num_shards", str(shards)),
    )


def _install(data: Path) -> Path:
    """Installs the Model Garden, unless it is there from the last time."""
    folder = data / _FOLDER
    python = find_model_garden(data)
    if python is None:
        python = folder / "bin" / "python"
        shutil.rmtree(folder, ignore_errors=True)
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [str(python), "-m", "pip", "install", "--quiet", _PACKAGE],
            [str(python), "-c", f"import {_SCRIPT}"],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                raise RuntimeError(f"{_PACKAGE} cannot be installed: {done.stderr[-1000:]}")
        (folder / _READY).touch()
    return python


def _contenders(dataset: Dataset, *, python: Path, output: Path) -> Iterator[Contender]:
    shards = min(SHARDS, dataset.count)
    for name, verify in ((HEADER, "header"), (DECODE, "decode")):
        yield Contender(
            name=name,
            dataset=dataset,
            command=(
                *(SHARDBEAM, "build", "coco", "--json"),
                *("--images", str(dataset.images), "--annotations", str(dataset.annotations)),
                *("--output", str(output / "coco"), "--set", "masks=png"),
                *("--set", f"image.verify={verify}", "--set", f"output.num_shards={shards}"),
            ),
        )
    yield Contender(
        name=MODEL_GARDEN,
        dataset=dataset,
        command=model_garden_command(
            dataset, python=python, prefix=output / "coco" / "train", shards=shards, masks=True
        ),
    )


def _measure_all(
    dataset: Dataset, *, python: Path, rounds: int
) -> tuple[Mapping[str, Result], int]:
    """Returns the results by contender, and how many masks each has written."""
    measured: dict[str, list[Measurement]] = {}
    written: dict[str, Mapping[bytes, list[bytes]]] = {}
    touch_bytes = round(3 * dataset.mean_image_bytes() * dataset.count)
    with tempfile.TemporaryDirectory(dir=dataset.folder.parent, prefix="output-") as temporary:
        output = Path(temporary) / "output"
        for number in range(1, rounds + 1):
            for contender in _contenders(dataset, python=python, output=output):
                output.mkdir()
                dataset.read_all()
                measurement = measure(contender.command, touch_bytes=touch_bytes)
                measured.setdefault(contender.name, []).append(measurement)
                if number == 1:
                    written[contender.name] = _read_masks(output / "coco")
                shutil.rmtree(output)
                print(
                    f"masks, round {number} of {rounds}: {contender.name}: "
                    f"{measurement.wall_time_s:.1f} s",
                    file=sys.stderr,
                )
    _compare(written)
    results = {
        # Only Shardbeam tells a rate without its imports.
        name: Result(measurements, images=dataset.count)
        for name, measurements in measured.items()
    }
    return results, sum(map(len, written[HEADER].values()))


def _read_masks(folder: Path) -> dict[bytes, list[bytes]]:
    """Reads the masks of each image, by the image's id."""
    masks = {}
    for path in sorted(folder.glob("*.tfrecord*")):
        with path.open("rb") as file:
            for record in read_records(file):
                features = Example.FromString(record).features.feature
                (image_id,) = features["image/source_id"].bytes_list.value
                masks[image_id] = list(features["image/object/mask"].bytes_list.value)
    return masks


def _compare(written: Mapping[str, Mapping[bytes, list[bytes]]]) -> None:
    ours, theirs = written[HEADER], written[MODEL_GARDEN]
    counts = [{image_id: len(masks) for image_id, masks in each.items()} for each in (ours, theirs)]
    same = counts[0] == counts[1] and all(
        np.array_equal(_pixels(one), _pixels(other))
        for image_id in sorted(ours)[:_COMPARED]
        for one, other in zip(ours[image_id], theirs[image_id], strict=True)
    )
    if not same:
        raise RuntimeError("Shardbeam and the Model Garden have written different masks")


def _pixels(png: bytes) -> npt.NDArray[np.uint8]:
    return np.asarray(Image.open(io.BytesIO(png)))


def _results_table(results: Mapping[str, Result]) -> str:
    return markdown_table(
        ["contender", "wall time, s", "CPU time, s", "images/s, whole process", "peak memory, MB"],
        (
            (
                name,
                median_and_range([each.wall_time_s for each in result.measurements]),
                median_and_range([each.cpu_time_s for each in result.measurements]),
                f"{result.images_per_s:,.0f}",
                megabytes(result.peak_bytes),
            )
            for name, result in results.items()
        ),
    )


def _targets_table(results: Mapping[str, Result]) -> str:
    def row(name: str) -> tuple[str, ...]:
        ratio = results[MODEL_GARDEN].wall_time_s / results[name].wall_time_s
        return target_row(
            f"{name}, masks, whole process: times as fast as the Model Garden's script",
            measured=f"{ratio:.1f}",
            target=f"≥ {_TARGET:.1f}",
            reached=ratio >= _TARGET,
        )

    return markdown_table(["target", "measured", "wanted", "reached"], [row(HEADER), row(DECODE)])

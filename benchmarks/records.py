"""What all but the images costs, at the size of COCO train2017, beside others who do the same."""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.datasets import Dataset, make_coco_like
from benchmarks.images import SHARDS, TFDS
from benchmarks.measure import SHARDBEAM, Measurement, measure
from benchmarks.report import markdown_table, median_and_range, megabytes, target_row

IMPORTS = "imports of a build"
PARSE_IMPORTS = "imports of the parser"
PARSE = "parsing alone"
PLAN = "`shardbeam plan`"
# With as many processes.
BUILDS = {count: f"`shardbeam build --processes {count}`" for count in (1, 2)}
SCRIPT_IMPORTS = "imports of the plain script"
SCRIPT = "plain script: `json.load`, a loop, protobuf, SHA-256, CRC"
# {process: the one that only imports what it imports}
_IMPORTS_OF = {
    **dict.fromkeys((IMPORTS, PLAN, *BUILDS.values()), IMPORTS),
    **dict.fromkeys((PARSE_IMPORTS, PARSE), PARSE_IMPORTS),
    **dict.fromkeys((SCRIPT_IMPORTS, SCRIPT), SCRIPT_IMPORTS),
}

_BUILD_IMPORTS = (
    "import shardbeam.pipelines.cli.arguments, shardbeam.pipelines.cli.run, "
    "shardbeam.pipelines.runners.options"
)
_PARSE = (sys.executable, "-m", "benchmarks.parse_coco")
_SCRIPT = (sys.executable, "-m", "benchmarks.plain_script")

# The most CPU time, wall time and memory of a build, as multiples of the plain script's.
_CPU_TARGET = 1.75
_WALL_TARGET = 1.0
_MEMORY_TARGET = 0.5

# {name: a measurement for each round}
_Measured = Mapping[str, Sequence[Measurement]]


def run_records(*, data: Path, images: int, rounds: int) -> str:
    """Measures a build of a file like COCO train2017's, its parts, and others who do the same.

    Args:
        data: Folder of the benchmarks' data.
        images: How many images the file names.
        rounds: How often each contender runs, in turn with the others.

    Returns:
        Markdown.
    """
    dataset = make_coco_like(data, images=images)
    measured = _measure_all(dataset, rounds=rounds, data=data)
    introduction = (
        f"A file like COCO train2017's: {images:,} images, "
        f"{dataset.annotations.stat().st_size / 1e6:,.0f} MB of JSON with polygons. Each image is "
        f"a flat gray JPEG of {dataset.mean_image_bytes():,.0f} bytes. In process, without masks, "
        f"`image.verify=none`; rounds: {rounds}, in each one contender after another. The plain "
        "script and tensorflow-datasets check nothing.\n"
    )
    targets = markdown_table(["target", "measured", "wanted", "reached"], _target_rows(measured))
    return "\n".join(["## Records\n", introduction, _process_table(measured), targets])


def _commands(dataset: Dataset, *, output: Path) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields `(name, command)` of all contenders."""
    flags = (
        *("coco", "--json", "--set", "image.verify=none"),
        *("--images", str(dataset.images), "--annotations", str(dataset.annotations)),
        *("--output", str(output / "coco")),
    )
    paths = (str(dataset.images), str(dataset.annotations), str(output))
    yield IMPORTS, (sys.executable, "-c", _BUILD_IMPORTS)
    yield SCRIPT_IMPORTS, (sys.executable, "-c", "import benchmarks.plain_script")
    yield PARSE_IMPORTS, _PARSE
    yield PARSE, (*_PARSE, str(dataset.annotations))
    yield PLAN, (SHARDBEAM, "plan", *flags)
    for count, name in BUILDS.items():
        shards = f"output.num_shards={SHARDS}"
        yield name, (SHARDBEAM, "build", *flags, "--processes", str(count), "--set", shards)
    yield SCRIPT, (*_SCRIPT, *paths, str(SHARDS))
    # On Python 3.10 it cannot be installed beside Beam.
    if importlib.util.find_spec("tensorflow_datasets") is not None:
        yield TFDS, (sys.executable, "-m", "benchmarks.tfds_builder", *paths, str(SHARDS))


def _measure_all(dataset: Dataset, *, rounds: int, data: Path) -> _Measured:
    dataset.read_all()
    measured: dict[str, list[Measurement]] = {}
    with tempfile.TemporaryDirectory(dir=data, prefix="output-") as temporary:
        output = Path(temporary) / "output"
        for number in range(1, rounds + 1):
            for name, command in _commands(dataset, output=output):
                output.mkdir()
                # Twice what parsing holds.
                touch_bytes = 4 * dataset.annotations.stat().st_size
                measurement = measure(command, touch_bytes=touch_bytes)
                shutil.rmtree(output)
                measured.setdefault(name, []).append(measurement)
                print(
                    f"records, round {number} of {rounds}: {name}: "
                    f"{measurement.cpu_time_s:.1f} s of CPU",
                    file=sys.stderr,
                )
    return measured


def _peak(measurements: Sequence[Measurement]) -> int:
    return max(each.peak_bytes for each in measurements)


def _process_table(measured: _Measured) -> str:
    def beyond_imports(name: str) -> str:
        if name not in _IMPORTS_OF:
            return ""
        return megabytes(_peak(measured[name]) - _peak(measured[_IMPORTS_OF[name]]))

    return markdown_table(
        ["process", "wall time, s", "CPU time, s", "peak memory, MB", "beyond its imports, MB"],
        (
            (
                name,
                median_and_range([each.wall_time_s for each in measurements]),
                median_and_range([each.cpu_time_s for each in measurements]),
                megabytes(_peak(measurements)),
                beyond_imports(name),
            )
            for name, measurements in measured.items()
        ),
    )


def _target_rows(measured: _Measured) -> Iterator[tuple[str, ...]]:
    """Compares the builds with the plain script."""

    def cpu_time_s(name: str) -> float:
        return statistics.median(each.cpu_time_s for each in measured[name])

    def wall_time_s(name: str) -> float:
        return statistics.median(each.wall_time_s for each in measured[name])

    for name in BUILDS.values():
        for what, ratio, target in (
            ("CPU time", cpu_time_s(name) / cpu_time_s(SCRIPT), _CPU_TARGET),
            ("peak memory", _peak(measured[name]) / _peak(measured[SCRIPT]), _MEMORY_TARGET),
            ("wall time", wall_time_s(name) / wall_time_s(SCRIPT), _WALL_TARGET),
        ):
            yield target_row(
                f"{name}: {what}, of the plain script's",
                measured=f"{ratio:.2f}",
                target=f"≤ {target:.2f}",
                reached=ratio <= target,
            )

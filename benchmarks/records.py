"""What all but the images costs, at the size of COCO train2017, beside others who do the same."""

from __future__ import annotations

import importlib.util
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks.contenders import SHARDS
from benchmarks.datasets import Dataset, make_coco_like
from benchmarks.measure import SHARDBEAM, Measurement, measure
from benchmarks.model_garden import find_model_garden, model_garden_command
from benchmarks.report import markdown_table, median_and_range, megabytes, target_row

IMPORTS = "imports of a build"
PARSE_IMPORTS = "imports of the parser"
PARSE = "parsing alone"
PLAN = "`shardbeam plan`"
# With as many processes.
BUILDS = {count: f"`shardbeam build --processes {count}`" for count in (1, 2)}
SCRIPT_IMPORTS = "imports of the plain script"
SCRIPT = "plain script: `json.load`, a loop, protobuf, SHA-256, CRC"
TFDS = "tensorflow-datasets, without Beam"
MODEL_GARDEN = "Model Garden: `create_coco_tf_record.py`"

_BUILD_IMPORTS = (
    "import shardbeam.pipelines.cli.arguments, shardbeam.pipelines.cli.run, "
    "shardbeam.pipelines.runners.options"
)
_PARSE = (sys.executable, "-m", "benchmarks.parse_coco")
_SCRIPT = (sys.executable, "-m", "benchmarks.plain_script")

_RECORDS_TARGET_S = 20.0
_RECORDS_TARGET_BYTES = 1_500_000_000
_PARSE_TARGET_FILE_SIZES = 3.0
# The most CPU time, wall time and memory of a build, as multiples of the plain script's; CPU time
# of all the images, and of a quarter of them.
_CPU_TARGETS = (1.75, 2.0)
_WALL_TARGET = 1.0
_MEMORY_TARGET = 0.5

# {name: a measurement for each round}
_Measured = Mapping[str, Sequence[Measurement]]


class _BuildWatch:
    """Sees in a build's staging area when it begins, and when it ends, to write shards.

    Attributes:
        encoding_began_s: Seconds from the build's start to the first shard.
        encoding_ended_s: To the end of the last shard.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self._done = 0
        self.encoding_began_s = 0.0
        self.encoding_ended_s = 0.0

    def __call__(self, at_s: float) -> None:
        # The commit takes staging away: of a tiny build this may be all there is to see.
        committed = (self._output / "dataset_info.json").exists()
        begun = committed or any(self._output.glob(".staging/*/shards/*"))
        if begun and not self.encoding_began_s:
            self.encoding_began_s = at_s
        done = sum(1 for _ in self._output.glob(".staging/*/shards/*/done"))
        if done > self._done or (committed and not self.encoding_ended_s):
            self._done = done
            self.encoding_ended_s = at_s


def run_records(*, data: Path, images: int, rounds: int) -> str:
    """Measures a build of a file like COCO train2017's, its parts, and others who do the same.

    Args:
        data: Folder of the benchmarks' data. The Model Garden takes part if it is installed there.
        images: How many images the file names. A quarter of them is measured, too.
        rounds: How often each contender runs, in turn with the others.

    Returns:
        Markdown.
    """
    large, small = (make_coco_like(data, images=count) for count in (images, images // 4))
    measured, watches = _measure_all(large, rounds=rounds, data=data, is_large=True)
    quarter, _ = _measure_all(small, rounds=rounds, data=data, is_large=False)
    introduction = (
        f"A file like COCO train2017's: {images:,} images, "
        f"{large.annotations.stat().st_size / 1e6:,.0f} MB of JSON with polygons. Each image is a "
        f"flat gray JPEG of {large.mean_image_bytes():,.0f} bytes. In process, without masks, "
        f"`image.verify=none`; rounds: {rounds}, in each one contender after another. The plain "
        "script, tensorflow-datasets and the Model Garden check nothing.\n"
    )
    return "\n".join(
        [
            "## Records\n",
            introduction,
            _process_table(measured),
            f"The same with {small.count:,} images:\n",
            _process_table(quarter),
            _stage_table(measured, watches=watches),
            markdown_table(
                ["target", "measured", "wanted", "reached"],
                _target_rows(measured, quarter=quarter, watches=watches, dataset=large),
            ),
        ]
    )


def _commands(
    dataset: Dataset, *, data: Path, output: Path, is_large: bool
) -> Iterator[tuple[str, Sequence[str]]]:
    """Yields `(name, command)` of all contenders."""
    flags = (
        *("coco", "--json", "--set", "image.verify=none"),
        *("--images", str(dataset.images), "--annotations", str(dataset.annotations)),
        *("--output", str(output / "coco")),
    )
    paths = (str(dataset.images), str(dataset.annotations), str(output))
    yield IMPORTS, (sys.executable, "-c", _BUILD_IMPORTS)
    yield SCRIPT_IMPORTS, (sys.executable, "-c", "import benchmarks.plain_script")
    if is_large:
        yield PARSE_IMPORTS, _PARSE
        yield PARSE, (*_PARSE, str(dataset.annotations))
        yield PLAN, (SHARDBEAM, "plan", *flags)
    for count, name in BUILDS.items():
        shards = f"output.num_shards={SHARDS}"
        yield name, (SHARDBEAM, "build", *flags, "--processes", str(count), "--set", shards)
    yield SCRIPT, (*_SCRIPT, *paths, str(SHARDS))
    if not is_large:
        return
    # On Python 3.10 it cannot be installed beside Beam.
    if importlib.util.find_spec("tensorflow_datasets") is not None:
        yield TFDS, (sys.executable, "-m", "benchmarks.tfds_builder", *paths, str(SHARDS))
    python = find_model_garden(data)
    if python is not None:
        yield (
            MODEL_GARDEN,
            model_garden_command(
                dataset, python=python, prefix=output / "train", shards=SHARDS, masks=False
            ),
        )


def _measure_all(
    dataset: Dataset, *, rounds: int, data: Path, is_large: bool
) -> tuple[_Measured, Sequence[_BuildWatch]]:
    """Returns the measurements, and what was seen of the builds with one process."""
    dataset.read_all()
    measured: dict[str, list[Measurement]] = {}
    watches = []
    with tempfile.TemporaryDirectory(dir=data, prefix="output-") as temporary:
        output = Path(temporary) / "output"
        for number in range(1, rounds + 1):
            for name, command in _commands(dataset, data=data, output=output, is_large=is_large):
                output.mkdir()
                watch = _BuildWatch(output / "coco") if name == BUILDS[1] else None
                measurement = measure(
                    command,
                    # Twice what parsing holds.
                    touch_bytes=4 * dataset.annotations.stat().st_size,
                    watch=watch,
                )
                shutil.rmtree(output)
                measured.setdefault(name, []).append(measurement)
                if watch is not None:
                    watches.append(watch)
                print(
                    f"records, round {number} of {rounds}: {name}, {dataset.count:,} images: "
                    f"{measurement.cpu_time_s:.1f} s of CPU",
                    file=sys.stderr,
                )
    return measured, watches


def _peak(measurements: Sequence[Measurement]) -> int:
    return max(each.peak_bytes() for each in measurements)


def _process_table(measured: _Measured) -> str:
    imports = {PARSE_IMPORTS: PARSE_IMPORTS, PARSE: PARSE_IMPORTS}
    imports |= dict.fromkeys((IMPORTS, PLAN, *BUILDS.values()), IMPORTS)
    imports |= dict.fromkeys((SCRIPT_IMPORTS, SCRIPT), SCRIPT_IMPORTS)

    def beyond_imports(name: str) -> str:
        if name not in imports:
            return ""
        return megabytes(_peak(measured[name]) - _peak(measured[imports[name]]))

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


def _stage_table(measured: _Measured, *, watches: Sequence[_BuildWatch]) -> str:
    builds = measured[BUILDS[1]]
    imports_s = statistics.median(each.wall_time_s for each in measured[IMPORTS])
    imports_bytes = _peak(measured[IMPORTS])
    records_s = [watch.encoding_began_s - imports_s for watch in watches]
    records_bytes = max(
        build.peak_bytes(until_s=watch.encoding_began_s)
        for build, watch in zip(builds, watches, strict=True)
    )
    encoding_s = [watch.encoding_ended_s - watch.encoding_began_s for watch in watches]
    whole_mb = megabytes(_peak(builds) - imports_bytes)
    return markdown_table(
        [f"stage of {BUILDS[1]}", "s", "peak memory so far, beyond the imports, MB"],
        [
            (
                "list, parse, join, split, shard",
                median_and_range(records_s),
                megabytes(records_bytes - imports_bytes),
            ),
            ("read, encode and write", median_and_range(encoding_s), whole_mb),
            ("commit", median_and_range(_commit_s(builds, watches=watches)), whole_mb),
        ],
    )


def _commit_s(builds: Sequence[Measurement], *, watches: Sequence[_BuildWatch]) -> list[float]:
    return [
        build.wall_time_s - watch.encoding_ended_s
        for build, watch in zip(builds, watches, strict=True)
    ]


def _target_rows(
    measured: _Measured, *, quarter: _Measured, watches: Sequence[_BuildWatch], dataset: Dataset
) -> Iterator[tuple[str, ...]]:
    def ratio_row(what: str, *, ours: float, theirs: float, target: float) -> tuple[str, ...]:
        ratio = ours / theirs
        return target_row(
            f"{what}, of the plain script's",
            measured=f"{ratio:.2f}",
            target=f"≤ {target:.2f}",
            reached=ratio <= target,
        )

    for name in BUILDS.values():
        for results, target, which in zip(
            (measured, quarter), _CPU_TARGETS, ("", ", a quarter of the images"), strict=True
        ):
            ours, theirs = (
                statistics.median(each.cpu_time_s for each in results[contender])
                for contender in (name, SCRIPT)
            )
            yield ratio_row(f"{name}{which}: CPU time", ours=ours, theirs=theirs, target=target)
    ours, theirs = (
        statistics.median(each.wall_time_s for each in measured[contender])
        for contender in (BUILDS[2], SCRIPT)
    )
    yield ratio_row(f"{BUILDS[2]}: wall time", ours=ours, theirs=theirs, target=_WALL_TARGET)
    for name in BUILDS.values():
        yield ratio_row(
            f"{name}: peak memory",
            ours=_peak(measured[name]),
            theirs=_peak(measured[SCRIPT]),
            target=_MEMORY_TARGET,
        )
    imports_s = statistics.median(each.wall_time_s for each in measured[IMPORTS])
    commits_s = _commit_s(measured[BUILDS[1]], watches=watches)
    records_s = statistics.median(
        watch.encoding_began_s - imports_s + commit_s
        for watch, commit_s in zip(watches, commits_s, strict=True)
    )
    yield target_row(
        "list, parse, join, split, shard and commit, s",
        measured=f"{records_s:.1f}",
        target=f"≤ {_RECORDS_TARGET_S:.0f}",
        reached=records_s <= _RECORDS_TARGET_S,
    )
    records_bytes = _peak(measured[BUILDS[1]]) - _peak(measured[IMPORTS])
    yield target_row(
        f"memory beyond the imports, MB ({records_bytes / dataset.count / 1e3:.1f} KB a record)",
        measured=megabytes(records_bytes),
        target=f"≤ {megabytes(_RECORDS_TARGET_BYTES)}",
        reached=records_bytes <= _RECORDS_TARGET_BYTES,
    )
    parse_bytes = _peak(measured[PARSE]) - _peak(measured[PARSE_IMPORTS])
    file_sizes = parse_bytes / dataset.annotations.stat().st_size
    yield target_row(
        "parsing alone: memory beyond its imports, as a multiple of the file's size",
        measured=f"{file_sizes:.1f}",
        target=f"≤ {_PARSE_TARGET_FILE_SIZES:.0f}",
        reached=file_sizes <= _PARSE_TARGET_FILE_SIZES,
    )

"""What all but the images costs, at the size of COCO train2017."""

from __future__ import annotations

import dataclasses
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.datasets import make_coco_like
from benchmarks.measure import SHARDBEAM, Measurement, measure
from benchmarks.report import markdown_table, median_and_range, megabytes, target_row

_BUILD_IMPORTS = (
    "import shardbeam.pipelines.arguments, shardbeam.pipelines.runners, shardbeam.pipelines.run"
)
_PARSE = (sys.executable, "-m", "benchmarks.parse_coco")

_RECORDS_TARGET_S = 20.0
_RECORDS_TARGET_BYTES = 1_500_000_000
_PARSE_TARGET_FILE_SIZES = 3.0


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Build:
    """A measured build.

    Attributes:
        whole: The measurement.
        encoding_began_s: See `_BuildWatch`.
        encoding_ended_s: See `_BuildWatch`.
    """

    whole: Measurement
    encoding_began_s: float
    encoding_ended_s: float

    @property
    def encoding_s(self) -> float:
        """Seconds for reading, encoding and writing."""
        return self.encoding_ended_s - self.encoding_began_s

    @property
    def commit_s(self) -> float:
        """Seconds for all that follows."""
        return self.whole.wall_time_s - self.encoding_ended_s

    @property
    def records_peak_bytes(self) -> int:
        """The most memory before the first shard."""
        return self.whole.peak_bytes(until_s=self.encoding_began_s)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Results:
    """All measurements, one for each round.

    Attributes:
        images: How many images the file names.
        file_bytes: How long it is.
        imports: Processes that import what a build imports, and end.
        parse_imports: The same for `parses`.
        parses: The file parsed, and nothing else.
        plans: `shardbeam plan`.
        builds: `shardbeam build`.
    """

    images: int
    file_bytes: int
    imports: Sequence[Measurement]
    parse_imports: Sequence[Measurement]
    parses: Sequence[Measurement]
    plans: Sequence[Measurement]
    builds: Sequence[_Build]

    @property
    def imports_s(self) -> float:
        """What the imports of a build take."""
        return statistics.median(each.wall_time_s for each in self.imports)


def run_records(*, data: Path, images: int, rounds: int) -> str:
    """Measures a build of a file like COCO train2017's, and its parts.

    Args:
        data: Folder of the benchmarks' data.
        images: How many images the file names.
        rounds: How often each is measured.

    Returns:
        Markdown.
    """
    dataset = make_coco_like(data, images=images)
    dataset.read_all()
    file_bytes = dataset.annotations.stat().st_size
    flags = (
        *("coco", "--json", "--set", "image.verify=none"),
        *("--images", str(dataset.images), "--annotations", str(dataset.annotations)),
    )

    def repeat(what: str, *command: str) -> list[Measurement]:
        return [_measure(what, command, file_bytes=file_bytes) for _ in range(rounds)]

    with tempfile.TemporaryDirectory(dir=data, prefix="output-") as temporary:
        outputs = [Path(temporary) / f"build-{number}" for number in range(rounds)]
        results = _Results(
            images=images,
            file_bytes=file_bytes,
            imports=repeat("imports of a build", sys.executable, "-c", _BUILD_IMPORTS),
            parse_imports=repeat("imports of the parser", *_PARSE),
            parses=repeat("parsing alone", *_PARSE, str(dataset.annotations)),
            plans=repeat("plan", SHARDBEAM, "plan", *flags, "--output", str(outputs[0])),
            builds=[
                _measure_build(
                    (SHARDBEAM, "build", *flags, "--output", str(output)),
                    output=output,
                    file_bytes=file_bytes,
                )
                for output in outputs
            ],
        )
    introduction = (
        f"A file like COCO train2017's: {images:,} images, {results.file_bytes / 1e6:,.0f} MB of "
        f"JSON with polygons. Each image is a flat gray JPEG of {dataset.mean_image_bytes():,.0f} "
        f"bytes. In process, without masks, `image.verify=none`; rounds: {rounds}.\n"
    )
    targets = markdown_table(["target", "measured", "wanted", "reached"], _target_rows(results))
    return "\n".join(
        ["## Records\n", introduction, _process_table(results), _stage_table(results), targets]
    )


def _measure_build(command: Sequence[str], *, output: Path, file_bytes: int) -> _Build:
    watch = _BuildWatch(output)
    whole = _measure("build", command, file_bytes=file_bytes, watch=watch)
    return _Build(
        whole=whole,
        encoding_began_s=watch.encoding_began_s,
        encoding_ended_s=watch.encoding_ended_s,
    )


def _measure(
    what: str, command: Sequence[str], *, file_bytes: int, watch: _BuildWatch | None = None
) -> Measurement:
    # Twice what parsing holds.
    measurement = measure(command, touch_bytes=4 * file_bytes, watch=watch)
    print(f"records: {what}: {measurement.wall_time_s:.1f} s", file=sys.stderr)
    return measurement


def _peak(measurements: Sequence[Measurement]) -> int:
    return max(each.peak_bytes() for each in measurements)


def _process_table(results: _Results) -> str:
    builds = [build.whole for build in results.builds]
    rows = (
        ("imports of a build", results.imports, results.imports),
        ("parsing alone", results.parses, results.parse_imports),
        ("`shardbeam plan`", results.plans, results.imports),
        ("`shardbeam build`", builds, results.imports),
    )
    return markdown_table(
        ["process", "wall time, s", "CPU time, s", "peak memory, MB", "beyond its imports, MB"],
        (
            (
                name,
                median_and_range([each.wall_time_s for each in measurements]),
                median_and_range([each.cpu_time_s for each in measurements]),
                megabytes(_peak(measurements)),
                megabytes(_peak(measurements) - _peak(imports)),
            )
            for name, measurements, imports in rows
        ),
    )


def _stage_table(results: _Results) -> str:
    builds = results.builds
    imports_bytes = _peak(results.imports)
    records_s = [build.encoding_began_s - results.imports_s for build in builds]
    records_bytes = max(build.records_peak_bytes for build in builds) - imports_bytes
    whole_bytes = _peak([build.whole for build in builds]) - imports_bytes
    return markdown_table(
        ["stage of `shardbeam build`", "s", "peak memory so far, beyond the imports, MB"],
        [
            (
                "list, parse, join, split, shard",
                median_and_range(records_s),
                megabytes(records_bytes),
            ),
            (
                "read, encode and write",
                median_and_range([build.encoding_s for build in builds]),
                megabytes(whole_bytes),
            ),
            (
                "commit",
                median_and_range([build.commit_s for build in builds]),
                megabytes(whole_bytes),
            ),
        ],
    )


def _target_rows(results: _Results) -> Iterator[tuple[str, ...]]:
    records_s = statistics.median(
        build.encoding_began_s - results.imports_s + build.commit_s for build in results.builds
    )
    yield target_row(
        "list, parse, join, split, shard and commit, s",
        measured=f"{records_s:.1f}",
        target=f"≤ {_RECORDS_TARGET_S:.0f}",
        reached=records_s <= _RECORDS_TARGET_S,
    )
    records_bytes = _peak([build.whole for build in results.builds]) - _peak(results.imports)
    yield target_row(
        f"memory beyond the imports, MB ({records_bytes / results.images / 1e3:.1f} KB a record)",
        measured=megabytes(records_bytes),
        target=f"≤ {megabytes(_RECORDS_TARGET_BYTES)}",
        reached=records_bytes <= _RECORDS_TARGET_BYTES,
    )
    file_sizes = (_peak(results.parses) - _peak(results.parse_imports)) / results.file_bytes
    yield target_row(
        "parsing alone: memory beyond its imports, as a multiple of the file's size",
        measured=f"{file_sizes:.1f}",
        target=f"≤ {_PARSE_TARGET_FILE_SIZES:.0f}",
        reached=file_sizes <= _PARSE_TARGET_FILE_SIZES,
    )

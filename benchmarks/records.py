"""What everything but the images costs, at the size of COCO train2017."""

from __future__ import annotations

import dataclasses
import json
import shutil
import statistics
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.coco_like import write_coco_like
from benchmarks.measure import Measurement, measure
from benchmarks.report import markdown_table, median_and_range, megabytes, target_row
from benchmarks.shapes_data import SHARDBEAM

# What a build imports before it does anything.
_IMPORTS = (sys.executable, "-c", "import pipelines.arguments, pipelines.beam_flags, pipelines.run")
_PARSE_IMPORTS = (sys.executable, "-m", "benchmarks.parse_coco")

_RECORDS_TARGET_S = 20.0
_RECORDS_TARGET_BYTES = 1_500_000_000
_PARSE_TARGET_FILE_SIZES = 3.0


class _BuildWatch:
    """Sees in a build's staging area when it begins and when it ends to write shards.

    Attributes:
        encoding_began_s: Seconds from its start to the first shard.
        encoding_ended_s: To the end of the last shard.
    """

    def __init__(self, output: Path) -> None:
        self._output = output
        self.encoding_began_s = 0.0
        self.encoding_ended_s = 0.0
        self._done = 0

    def __call__(self, at_s: float) -> None:
        if not self.encoding_began_s and any(self._output.glob(".staging/*/shards/*")):
            self.encoding_began_s = at_s
        done = sum(1 for _ in self._output.glob(".staging/*/shards/*/done"))
        # The commit takes them away again.
        if done > self._done:
            self._done = done
            self.encoding_ended_s = at_s


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Build:
    """A measured build.

    Attributes:
        records_s: Seconds for list, join, split and shard, and the start of the process.
        encoding_s: For reading, encoding and writing.
        commit_s: For all that follows.
        records_peak_bytes: The most memory before encoding began.
        whole: The measurement.
    """

    records_s: float
    encoding_s: float
    commit_s: float
    records_peak_bytes: int
    whole: Measurement


def run_records(*, data: Path, images: int, rounds: int) -> str:
    """Measures a build of a file like COCO train2017's, and its parts.

    Args:
        data: Folder of the benchmarks' data.
        images: How many images the file holds.
        rounds: How often each is measured.

    Returns:
        Markdown.
    """
    folder = _make_coco_like(data, images=images)
    annotations = folder / "annotations" / "instances.json"
    # The images' folder entries and the file, into the page cache.
    annotations.read_bytes()
    for path in (folder / "images").iterdir():
        path.read_bytes()
    output = data / "output"

    def repeat(what: str, run: Callable[[], Measurement]) -> list[Measurement]:
        measurements = []
        for number in range(1, rounds + 1):
            measurements.append(run())
            wall_time_s = measurements[-1].wall_time_s
            print(f"records, {number} of {rounds}: {what}: {wall_time_s:.1f} s", file=sys.stderr)
        return measurements

    arguments = [
        *("coco", "--json", "--images", str(folder / "images"), "--annotations", str(annotations)),
        *("--output", str(output), "--set", "image.verify=none"),
    ]
    imports = repeat("imports", lambda: measure(_IMPORTS))
    parse_imports = repeat("imports of the parser", lambda: measure(_PARSE_IMPORTS))
    parses = repeat("parse", lambda: measure([*_PARSE_IMPORTS, str(annotations)]))
    plans = repeat("plan", lambda: measure([SHARDBEAM, "plan", *arguments]))
    builds: list[_Build] = []

    def build() -> Measurement:
        builds.append(_measure_build([SHARDBEAM, "build", *arguments], output=output))
        return builds[-1].whole

    whole_builds = repeat("build", build)
    shutil.rmtree(output, ignore_errors=True)
    imports_s = statistics.median(each.wall_time_s for each in imports)
    imports_bytes = _peak(imports)
    return "\n".join(
        [
            "## Records",
            "",
            f"A file like COCO train2017's: {images:,} images, {annotations.stat().st_size / 1e6:,.0f}"
            f" MB of JSON with polygons; each image is a flat gray JPEG of "
            f"{_image_bytes(folder):,} bytes. In process, without masks, "
            f"`image.verify=none`, files in the page cache; {rounds} rounds: median (least–most). "
            "Imports are what a process costs that does nothing else.",
            "",
            markdown_table(
                ["process", "wall time, s", "peak memory, MB", "beyond the imports, MB"],
                [
                    _process_row("imports of a build", imports, imports_bytes),
                    _process_row("parsing alone", parses, _peak(parse_imports)),
                    _process_row("`shardbeam plan`", plans, imports_bytes),
                    _process_row("`shardbeam build`", whole_builds, imports_bytes),
                ],
            ),
            _stages_table(builds, imports_s=imports_s, imports_bytes=imports_bytes),
            _targets_table(
                builds,
                imports_s=imports_s,
                imports_bytes=imports_bytes,
                parse_file_sizes=(_peak(parses) - _peak(parse_imports))
                / annotations.stat().st_size,
                images=images,
            ),
        ]
    )


def _make_coco_like(data: Path, *, images: int) -> Path:
    folder = data / f"coco-like-{images}"
    if not folder.exists():
        partial = folder.with_name(f"{folder.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        write_coco_like(partial, images=images)
        partial.rename(folder)
    return folder


def _measure_build(command: Sequence[str], *, output: Path) -> _Build:
    shutil.rmtree(output, ignore_errors=True)
    watch = _BuildWatch(output)
    whole = measure(command, watch=watch)
    return _Build(
        records_s=watch.encoding_began_s,
        encoding_s=watch.encoding_ended_s - watch.encoding_began_s,
        commit_s=whole.wall_time_s - watch.encoding_ended_s,
        records_peak_bytes=whole.peak_bytes(until_s=watch.encoding_began_s),
        whole=whole,
    )


def _peak(measurements: Sequence[Measurement]) -> int:
    return max(each.peak_bytes() for each in measurements)


def _image_bytes(folder: Path) -> int:
    return next((folder / "images").iterdir()).stat().st_size


def _process_row(
    name: str, measurements: Sequence[Measurement], imports_bytes: int
) -> tuple[str, ...]:
    peak = _peak(measurements)
    return (
        name,
        median_and_range([each.wall_time_s for each in measurements]),
        megabytes(peak),
        megabytes(peak - imports_bytes),
    )


def _stages_table(builds: Sequence[_Build], *, imports_s: float, imports_bytes: int) -> str:
    records_peak = max(build.records_peak_bytes for build in builds)
    return markdown_table(
        ["stage of `shardbeam build`", "s", "peak memory beyond the imports, MB"],
        [
            (
                "list, parse, join, split, shard",
                median_and_range([build.records_s - imports_s for build in builds]),
                megabytes(records_peak - imports_bytes),
            ),
            (
                "read, encode and write",
                median_and_range([build.encoding_s for build in builds]),
                megabytes(_peak([build.whole for build in builds]) - imports_bytes),
            ),
            ("commit", median_and_range([build.commit_s for build in builds]), ""),
        ],
    )


def _targets_table(
    builds: Sequence[_Build],
    *,
    imports_s: float,
    imports_bytes: int,
    parse_file_sizes: float,
    images: int,
) -> str:
    records_s = statistics.median(build.records_s + build.commit_s - imports_s for build in builds)
    records_bytes = _peak([build.whole for build in builds]) - imports_bytes
    return markdown_table(
        ["target", "measured", "wanted", "reached"],
        [
            target_row(
                "list, parse, join, split, shard and commit, s",
                measured=f"{records_s:.1f}",
                target=f"≤ {_RECORDS_TARGET_S:.0f}",
                reached=records_s <= _RECORDS_TARGET_S,
            ),
            target_row(
                f"memory beyond the imports, MB ({records_bytes / images / 1e3:.1f} KB a record)",
                measured=megabytes(records_bytes),
                target=f"≤ {megabytes(_RECORDS_TARGET_BYTES)}",
                reached=records_bytes <= _RECORDS_TARGET_BYTES,
            ),
            target_row(
                "parsing alone: memory beyond its imports, sizes of the file",
                measured=f"{parse_file_sizes:.1f}",
                target=f"≤ {_PARSE_TARGET_FILE_SIZES:.0f}",
                reached=parse_file_sizes <= _PARSE_TARGET_FILE_SIZES,
            ),
        ],
    )

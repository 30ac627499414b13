"""Measures the CPU time that findings add to a build: pairs of builds with and without them.

Run `python -m benchmarks.findings_cost` on a machine that does nothing else. It takes about ten
minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np
import numpy.typing as npt

from benchmarks.datasets import Dataset, make_coco_like, make_shapes
from benchmarks.report import describe_machine, markdown_table, median_and_range, target_row

if TYPE_CHECKING:
    from shardbeam.transforms.dataset.example_findings import Finding

_BOX_KEYS = tuple(f"image/object/bbox/{side}" for side in ("xmin", "ymin", "xmax", "ymax"))
_FOLDER = Path(__file__).parent
# The most that findings may add to the CPU time of a build, in percent.
_MOST_PERCENT = 2.0
_WITH, _WITHOUT = "with", "without"


def build(words: Sequence[str], *, findings: bool) -> None:
    """Runs `shardbeam build` in this process.

    Args:
        words: The words after `build`. With more processes than one, `findings` has no effect.
        findings: Whether to look for findings; if not, the functions that do are replaced.

    Raises:
        RuntimeError: The build failed.
    """
    from shardbeam.pipelines.cli.main import main as run
    from shardbeam.transforms.commit import commit
    from shardbeam.transforms.dataset import statistics as counting
    from shardbeam.transforms.dataset.example_findings import ObjectColumns
    from shardbeam.transforms.images import difference_hash
    from shardbeam.transforms.shards import writer

    class OnlyBoxes(ObjectColumns):
        """Keeps only what the statistics need."""

        def add(self, number: int, values: Mapping[str, Sequence[Any]]) -> bool:
            """Adds the boxes of an Example, all of which have boxes here."""
            del number
            for column, key in zip(self._boxes, _BOX_KEYS, strict=True):
                column.extend(values[key])
            return True

        def find(self) -> Iterator[tuple[int, Finding]]:
            """Finds nothing."""
            return iter(())

        def shares(self) -> npt.NDArray[np.float64]:
            """Returns the area of each box as a fraction of its image's."""
            xmin, ymin, xmax, ymax = (np.frombuffer(each, np.float32) for each in self._boxes)
            return (xmax - xmin).astype(np.float64) * (ymax - ymin)

    with contextlib.ExitStack() as replaced:
        # Plain functions, because a mock would take longer than what it replaces.
        for module, name, other in (
            (counting, "ObjectColumns", OnlyBoxes),
            (writer, "find_in_picture", _find_nothing),
            (difference_hash, "gray_levels", _full_contrast),
            (commit, "find_kinds", _find_nothing),
        ):
            if not findings:
                replaced.enter_context(mock.patch.object(module, name, other))
        if exit_code := run(["build", *words]):
            raise RuntimeError(f"shardbeam build {' '.join(words)}: exit code {exit_code}")


def _find_nothing(*_: object, **__: object) -> list[object]:
    return []


def _full_contrast(_: object) -> tuple[int, int]:
    return 0, 255


def run_findings(*, data: Path, images: int, records: int, rounds: int) -> str:
    """Measures pairs of builds, one after another, in this process.

    Args:
        data: Folder of all the benchmarks' data.
        images: Photograph-sized images, which are decoded.
        records: Tiny images with the annotations of COCO.
        rounds: Pairs of builds of each.

    Returns:
        Markdown.
    """
    rows, targets = [], []
    for what, dataset, flags in (
        (f"{images:,} images, `verify=decode`", make_shapes(data, images=images), ()),
        (
            f"{records:,} records of COCO, `verify=header`",
            make_coco_like(data, images=records),
            ("--set", "image.verify=header"),
        ),
    ):
        pairs = _measure_pairs(dataset, flags, output=data / "findings-output", rounds=rounds)
        added = [100 * (with_s / without_s - 1) for with_s, without_s in pairs]
        # Single pairs differ by 10 % either way; the middle half shows how sure the median is.
        least, _, most = statistics.quantiles(added, n=4)
        rows.append(
            (
                what,
                *map(median_and_range, zip(*pairs, strict=True)),
                f"{statistics.median(added):.1f} ({least:.1f} to {most:.1f})",
            )
        )
        targets.append(
            target_row(
                f"{what}: CPU time that findings add, median of the pairs",
                measured=f"{statistics.median(added):.1f} %",
                target=f"≤ {_MOST_PERCENT:.0f} %",
                reached=statistics.median(added) <= _MOST_PERCENT,
            )
        )
    return "\n".join(
        [
            f"## Findings\n\nPairs of builds in one process: {rounds}. Which one is first "
            "changes. The last column gives the middle half of the pairs.\n",
            markdown_table(["build", "CPU time, s", "without findings, s", "added, %"], rows),
            markdown_table(["target", "measured", "wanted", "reached"], targets),
        ]
    )


def _measure_pairs(
    dataset: Dataset, flags: Sequence[str], *, output: Path, rounds: int
) -> list[tuple[float, float]]:
    words = [
        *("coco", "--images", str(dataset.images), "--annotations", str(dataset.annotations)),
        *("--output", str(output), "--processes", "1", *flags),
    ]

    def measure(findings: str) -> float:
        shutil.rmtree(output, ignore_errors=True)
        begun_s = time.process_time()
        with (
            open(os.devnull, "w") as nothing,
            contextlib.redirect_stdout(nothing),
            contextlib.redirect_stderr(nothing),
        ):
            build(words, findings=findings == _WITH)
        return time.process_time() - begun_s

    # The first builds also import what they need.
    for findings in (_WITH, _WITHOUT):
        measure(findings)
    pairs = []
    for number in range(rounds):
        order = (_WITH, _WITHOUT) if number % 2 else (_WITHOUT, _WITH)
        times = {findings: measure(findings) for findings in order}
        pairs.append((times[_WITH], times[_WITHOUT]))
    shutil.rmtree(output, ignore_errors=True)
    return pairs


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, and prints the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.findings_cost", description=__doc__)
    parser.add_argument("--images", type=int, default=500, help="(default: 500)")
    parser.add_argument("--records", type=int, default=5_000, help="(default: 5,000)")
    parser.add_argument("--rounds", type=int, default=40, help="(default: 40)")
    parser.add_argument("--data", type=Path, default=_FOLDER / "data", help="folder for the data")
    arguments = parser.parse_args(argv)
    arguments.data.mkdir(parents=True, exist_ok=True)
    section = run_findings(
        data=arguments.data,
        images=arguments.images,
        records=arguments.records,
        rounds=arguments.rounds,
    )
    print(f"{describe_machine()}\n{section}")


if __name__ == "__main__":
    main()

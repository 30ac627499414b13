"""Measures the CPU time that findings add to a build: pairs of builds with and without them.

Run `python -m benchmarks.findings_cost` on a machine that does nothing else. It takes about ten
minutes on two CPUs.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

from benchmarks.datasets import Dataset, make_coco_like, make_shapes
from benchmarks.measure import measure
from benchmarks.report import describe_machine, markdown_table, median_and_range, target_row

_FOLDER = Path(__file__).parent
# The most that findings may add to the CPU time of a build, in percent.
_MOST_PERCENT = 2.0
# A build in this process; the first argument says whether it looks for findings.
_CHILD = "import sys; from benchmarks.findings_cost import build; build(sys.argv[1], sys.argv[2:])"
_WITH, _WITHOUT = "with", "without"


def build(findings: str, words: Sequence[str]) -> None:
    """Runs `shardbeam build`, and exits with its exit code.

    Without findings, the functions that find them are replaced in this process, so the build must
    not start others.

    Args:
        findings: `with` or `without`.
        words: The words after `build`.
    """
    from shardbeam.pipelines.cli import main as run
    from shardbeam.transforms.dataset import commit
    from shardbeam.transforms.examples import encode
    from shardbeam.transforms.images import difference_hash

    command = ["build", *words, "--processes", "1"]
    if findings == _WITH:
        sys.exit(run(command))
    # Plain functions, because a mock would take longer than what it replaces.
    with (
        mock.patch.object(encode, "find_in_example", _find_nothing),
        mock.patch.object(difference_hash, "gray_levels", _full_contrast),
        mock.patch.object(commit, "find_kinds", _find_nothing),
    ):
        sys.exit(run(command))


def _find_nothing(*_: object, **__: object) -> list[object]:
    return []


def _full_contrast(_: object) -> tuple[int, int]:
    return 0, 255


def run_findings(*, data: Path, images: int, records: int, rounds: int) -> str:
    """Measures pairs of builds, one after another.

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
        pairs = _measure_pairs(dataset, flags, data=data, rounds=rounds)
        added = [100 * (with_s / without_s - 1) for with_s, without_s in pairs]
        rows.append((what, *map(median_and_range, (*zip(*pairs, strict=True), added))))
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
            f"## Findings\n\nPairs of builds: {rounds}; which one of a pair is first changes.\n",
            markdown_table(["build", "CPU time, s", "without findings, s", "added, %"], rows),
            markdown_table(["target", "measured", "wanted", "reached"], targets),
        ]
    )


def _measure_pairs(
    dataset: Dataset, flags: Sequence[str], *, data: Path, rounds: int
) -> list[tuple[float, float]]:
    output = data / "findings-output"
    words = [
        *("coco", "--images", str(dataset.images), "--annotations", str(dataset.annotations)),
        *("--output", str(output), *flags),
    ]
    pairs = []
    for number in range(rounds):
        times = {}
        order = (_WITH, _WITHOUT) if number % 2 else (_WITHOUT, _WITH)
        for findings in order:
            shutil.rmtree(output, ignore_errors=True)
            dataset.read_all()
            found = measure([sys.executable, "-c", _CHILD, findings, *words])
            times[findings] = found.cpu_time_s
        pairs.append((times[_WITH], times[_WITHOUT]))
    shutil.rmtree(output, ignore_errors=True)
    return pairs


def main(argv: Sequence[str] | None = None) -> None:
    """Measures, and prints the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.findings_cost", description=__doc__)
    parser.add_argument("--images", type=int, default=2_000, help="(default: 2,000)")
    parser.add_argument("--records", type=int, default=20_000, help="(default: 20,000)")
    parser.add_argument("--rounds", type=int, default=10, help="(default: 10)")
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

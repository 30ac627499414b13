"""Compares what a config expects of a dataset (`expect`) with what was counted."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardbeam.transforms.commit.gate import RunCounts
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.reasons import correction_unit
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.findings import KindFound
from shardbeam.transforms.dataset.outcome import SplitOutcome


def find_unmet(run: RunCounts, *, findings: Iterable[KindFound] = ()) -> Iterator[str]:
    """Describes each expectation that is not met, and what was found instead, in one line.

    Args:
        run: What was counted.
        findings: The dataset's findings.
    """
    expect, statistics = run.dataset.expect, run.statistics
    yield from _find_too_many(dict(expect.max_findings or {}), findings=findings)
    for split, outcome in run.splits.items():
        # Inputs that belong to no split have no statistics.
        if split not in statistics:
            continue
        checks = _checks(outcome, statistics[split], classes=run.label_map.ids)
        for key, expected in expect.of_split(split).items():
            if key == expect.BY_KIND:
                continue
            problem = checks[key](expected)
            if problem:
                yield f"split {split!r}: expect.{key}: {problem}"


def _find_too_many(most: Mapping[Any, int], *, findings: Iterable[KindFound]) -> Iterator[str]:
    by_split: dict[tuple[str, str], list[KindFound]] = {}
    for each in findings:
        by_split.setdefault((each.kind, each.split), []).append(each)
    for (kind, split), found in by_split.items():
        count = sum(each.images for each in found) or len(found)
        if kind in most and count > most[kind]:
            where = f"split {split!r}: " if split else ""
            yield (
                f"{where}expect.max_findings: {kind}: expected at most {most[kind]:,}, found "
                f"{count:,}: {found[0].describe()}"
            )


def _checks(
    outcome: SplitOutcome, counted: Statistics, *, classes: Collection[str]
) -> Mapping[str, Callable[[Any], str]]:
    """Returns a check for each key; it returns the problem, or an empty text if there is none."""
    return {
        "min_images": lambda least: _below(outcome.images, least, unit="images"),
        "min_objects": lambda least: _below(outcome.objects, least, unit="objects"),
        "min_images_per_class": lambda least: _few(
            counted.images_by_class, least, unit="images", classes=classes
        ),
        "min_objects_per_class": lambda least: _few(
            counted.objects_by_class, least, unit="objects", classes=classes
        ),
        "image_width": lambda sides: _outside(counted.width_range, sides),
        "image_height": lambda sides: _outside(counted.height_range, sides),
        "max_unannotated": lambda share: _above(
            counted.unannotated, share, of=counted.images, what="images without annotations"
        ),
        "max_crowds": lambda share: _above(
            counted.crowds, share, of=counted.objects, what="objects that are crowds"
        ),
        "max_corrections": lambda share: "; ".join(
            filter(None, _corrected(outcome, counted, share=share))
        ),
    }


def _below(found: int, least: int, *, unit: str) -> str:
    return f"expected at least {least:,} {unit}, found {found:,}" if found < least else ""


def _few(counts: Mapping[str, int], least: int, *, unit: str, classes: Collection[str]) -> str:
    few = sorted((counts.get(name, 0), name) for name in classes if counts.get(name, 0) < least)
    named = list_classes([f"{name} ({count:,})" for count, name in few])
    classes_have = "1 class has" if len(few) == 1 else f"{len(few):,} classes have"
    expected = f"expected at least {least:,} {unit} of each class, {classes_have} fewer"
    return f"{expected}: {named}" if few else ""


def _outside(found: Sequence[int], sides: Sequence[int]) -> str:
    least, greatest = sides
    if not found or (least <= found[0] and found[1] <= greatest):
        return ""
    return f"expected {least:,} to {greatest:,} px, found {found[0]:,} to {found[1]:,} px"


def _corrected(outcome: SplitOutcome, counted: Statistics, *, share: float) -> Iterator[str]:
    written = {"objects": outcome.objects, "labels": counted.labels}
    for code, count in outcome.corrections.items():
        unit = correction_unit(code)
        of = written.get(unit, outcome.images)
        if code.endswith("_dropped"):
            # The counts of what was written do not include what was dropped.
            of += count
        what = f"{unit if unit in written else 'images'} that are {code}"
        yield _above(count, share, of=of, what=what)


def _above(found: int, share: float, *, of: int, what: str) -> str:
    if not found or (of and found / of <= share):
        return ""
    ratio = f" ({found / of:.2%})" if of else ""
    return f"expected at most {share:.2%} {what}, found {found:,} of {of:,}{ratio}"

"""How many rejects a dataset may have: `rejects.max_ratio`, or what is allowed without it.

Without `rejects.max_ratio`, 1 % of each split may be rejected, so that one damaged picture does not
stop a large dataset. In a small one, a single picture is more than that. So a split may also have a
few rejects that only the picture itself causes. Anything else, such as missing images, is more
likely a mistake in the config.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from shardbeam.configs.schema import DEFAULT_MAX_RATIO
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.reasons import ALLOWED_OF_A_KIND, ALLOWED_REASONS, Reason
from shardbeam.transforms.core.sharding import NO_SPLIT
from shardbeam.transforms.dataset.outcome import SplitOutcome, add_counts

# The largest share of the images that the allowance lets go.
_MAX_SHARE = 0.05
# If a config's own `rejects.max_ratio` lets more than this share go, the summary begins with it.
_NOTABLE_SHARE = 0.05
_FEW = f"{ALLOWED_OF_A_KIND} damaged pictures"


class Emptied(NamedTuple):
    """What has no image left, because of rejects.

    Attributes:
        classes: The classes.
        sources: The sources.
    """

    classes: Sequence[str] = ()
    sources: Sequence[str] = ()


class Tolerance(NamedTuple):
    """How many rejects a dataset may have.

    Attributes:
        max_ratio: The greatest share of a split's inputs (`SplitOutcome.inputs`) that may be
            rejected; None for the default and its allowance.
        divided: The splits among which `fractions` divide the images. The allowance takes them as
            one, because chance decides which of them a reject is in.
        emptied: `{split: what the rejects of the split leave without an image}`; the allowance
            never covers these.
    """

    max_ratio: float | None
    divided: Collection[str] = ()
    emptied: Mapping[str, Emptied] = {}

    def excess(self, splits: Mapping[str, SplitOutcome]) -> dict[str, str]:
        """Finds the splits with too many rejects.

        Args:
            splits: The counts of each split.

        Returns:
            `{split: a line that says which rule its rejects break}`
        """
        found = {}
        for name, split in _splits_above(splits, ratio=self._ratio):
            problem = self._find_problem(name, splits)
            if problem:
                found[name] = f"{_describe_ratio(name, split)}; {problem}"
        return found

    def allowed(self, splits: Mapping[str, SplitOutcome]) -> list[str]:
        """Returns the splits that only the allowance lets pass."""
        above = (name for name, _ in _splits_above(splits, ratio=self._ratio))
        return [name for name in above if not self._find_problem(name, splits)]

    def describe_tolerated(self, splits: Mapping[str, SplitOutcome]) -> str:
        """Says which splits lose more than 5 % because the config tolerates it; may be empty."""
        if self.max_ratio is None:
            return ""
        lines = [
            _describe_ratio(name, split)
            for name, split in _splits_above(splits, ratio=_NOTABLE_SHARE)
            if split.reject_ratio <= self.max_ratio
        ]
        return f"{'; '.join(lines)}; rejects.max_ratio allows it" if lines else ""

    @property
    def _ratio(self) -> float:
        return DEFAULT_MAX_RATIO if self.max_ratio is None else self.max_ratio

    def _find_problem(self, name: str, splits: Mapping[str, SplitOutcome]) -> str:
        """Says why a split with more rejects than the ratio may not pass; empty if it may."""
        if self.max_ratio is not None:
            return f"rejects.max_ratio allows {self.max_ratio:.2%}"
        names = [each for each in self.divided if each in splits]
        if name not in names:
            names = [name]
        problem = (
            _find_others([splits[each] for each in names])
            or _find_too_many([splits[each] for each in names], names=names)
            or self._find_emptied(names)
        )
        return problem and f"the default allows {DEFAULT_MAX_RATIO:.0%}, {problem}"

    def _find_emptied(self, names: Sequence[str]) -> str:
        """Says which classes and sources have no image left."""
        lost = [self.emptied[name] for name in names if name in self.emptied]
        classes = sorted({each for split in lost for each in split.classes})
        sources = sorted({repr(each) for split in lost for each in split.sources})
        whose = [
            f"{what} {list_classes(found)}"
            for what, found in (("class", classes), ("source", sources))
            if found
        ]
        if not whose:
            return ""
        return f"or {_FEW}, but not all images of {' and '.join(whose)}"


def _find_others(splits: Sequence[SplitOutcome]) -> str:
    """Names the rejects of a split that the allowance does not cover, if these are too many."""
    covered = frozenset().union(*ALLOWED_REASONS.values())
    for split in splits:
        others = {
            each: count for each, count in split.rejected.items() if Reason(each) not in covered
        }
        if others and sum(others.values()) / split.inputs > DEFAULT_MAX_RATIO:
            return f"and more only of damaged pictures, not of these: {_list_reasons(others)}"
    return ""


def _find_too_many(splits: Sequence[SplitOutcome], *, names: Sequence[str]) -> str:
    """Says which number of rejects is greater than the allowance for splits that count as one."""
    rejected = add_counts(*(split.rejected for split in splits))
    inputs = sum(split.inputs for split in splits)
    where = f" in {' and '.join(names)}" if len(names) > 1 else ""
    total = 0
    for kind, reasons in ALLOWED_REASONS.items():
        counts = {each: count for each, count in rejected.items() if Reason(each) in reasons}
        total += sum(counts.values())
        if sum(counts.values()) > ALLOWED_OF_A_KIND:
            return f"or {ALLOWED_OF_A_KIND} {kind}, and there are {_list_reasons(counts)}{where}"
    if total / inputs > _MAX_SHARE:
        return (
            f"or {_FEW} if they are at most {_MAX_SHARE:.0%}, and these are {total} of {inputs} "
            f"inputs{where}"
        )
    return ""


def _splits_above(
    splits: Mapping[str, SplitOutcome], *, ratio: float
) -> Iterator[tuple[str, SplitOutcome]]:
    for name, split in splits.items():
        if name != NO_SPLIT and split.reject_ratio > ratio:
            yield name, split


def _describe_ratio(name: str, split: SplitOutcome) -> str:
    return (
        f"split {name!r}: {sum(split.rejected.values())} of {split.inputs} inputs rejected "
        f"({split.reject_ratio:.2%})"
    )


def _list_reasons(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items())


def find_emptied(
    *,
    classes: Iterable[tuple[str, Collection[str]]],
    sources: Iterable[tuple[str, Collection[str]]],
    written: Collection[str],
    left: Collection[str],
) -> dict[str, Emptied]:
    """Finds what has lost all of its images.

    Args:
        classes: `(split, classes of its rejects that the allowance may cover)`.
        sources: `(split, sources of these rejects)`.
        written: The classes that are written.
        left: The sources of which an image is written.

    Returns:
        `{split: what its rejects leave without an image}`
    """
    lost: dict[str, tuple[set[str], set[str]]] = {}
    for place, pairs, kept in ((0, classes, written), (1, sources, left)):
        for split, names in pairs:
            lost.setdefault(split, (set(), set()))[place].update({*names} - {*kept})
    return {split: Emptied(*map(sorted, names)) for split, names in lost.items() if any(names)}


def describe_tolerance(splits: Mapping[str, SplitOutcome]) -> str:
    """Describes what to do about the rejects, with the smallest ratio that allows them."""
    return f"fix them, or let them pass: --set rejects.max_ratio={tolerated_ratio(splits):g}"


def tolerated_ratio(splits: Mapping[str, SplitOutcome]) -> float:
    """Returns the smallest `rejects.max_ratio` that lets all rejects pass, to a thousandth."""
    ratios = (split.reject_ratio for name, split in splits.items() if name != NO_SPLIT)
    return math.ceil(1000 * max(ratios)) / 1000

"""Counting what the join does, from its data and not from counters, which count retries twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping

import msgspec

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.dataset.outcome import SplitOutcome, merge_split_outcomes
from shardbeam.transforms.formats.joining import JoinedKey
from shardbeam.transforms.formats.names import listing_exclusion
from shardbeam.transforms.formats.sources import Source


class SourceTally(msgspec.Struct, frozen=True, kw_only=True):
    """What the join saw of one source.

    Attributes:
        referenced: Keys that its annotation files name, and image ids without one.
        matched: How many of these are listed.
        listed_key: The first listed key of an image, of those in the fewest folders; empty where
            there is none.
        referenced_key: The first key that the annotation files name, likewise.
    """

    referenced: int = 0
    matched: int = 0
    listed_key: str = ""
    referenced_key: str = ""


class JoinTally(msgspec.Struct, frozen=True, kw_only=True):
    """What the join counted: mergeable.

    Attributes:
        splits: Counts by split; `examples` are the records that go on to be encoded.
        sources: Counts by source.
        labels: Image-level classes that images' names tell, sorted.
    """

    splits: Mapping[str, SplitOutcome] = {}
    sources: Mapping[str, SourceTally] = {}
    labels: tuple[str, ...] = ()


class JoinCounter:
    """Counts keys one by one; `tally` gives the sum."""

    def __init__(self) -> None:
        self._splits: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._rejected: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._excluded: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._sources: dict[str, SourceTally] = {}
        self._labels: set[str] = set()

    def add(
        self, joined: JoinedKey, *, source: str, key: str, listed: int, referenced: int
    ) -> None:
        """Counts one key.

        Args:
            joined: What became of it.
            source: Its source.
            key: The key.
            listed: How many listed files have it.
            referenced: How many annotation entries name it.
        """
        self._labels.update(joined.labels)
        counts = self._splits[joined.split]
        counts["listed"] += listed
        if joined.record is not None:
            counts["images"] += 1
            counts["examples"] += joined.record.examples
        counts["unannotated"] += joined.unannotated
        if joined.excluded is not None:
            self._excluded[joined.split][joined.excluded.value] += 1
        for reject in joined.rejects:
            counts["unlisted"] += not reject.listed
            self._rejected[joined.split][reject.reason.value] += 1
        self._sources[source] = _merge_sources(
            self._sources.get(source, SourceTally()),
            SourceTally(
                referenced=int(referenced > 0),
                matched=int(referenced > 0 and listed > 0),
                listed_key=key if listed and listing_exclusion(key) is None else "",
                referenced_key=key if referenced and not _is_only_an_id(joined) else "",
            ),
        )

    def tally(self) -> JoinTally:
        """Returns what was counted so far."""
        return JoinTally(
            splits={
                split: SplitOutcome(
                    listed=counts["listed"],
                    images=counts["images"],
                    examples=counts["examples"],
                    unannotated=counts["unannotated"],
                    unlisted=counts["unlisted"],
                    rejected=self._rejected.get(split, {}),
                    excluded=self._excluded.get(split, {}),
                )
                for split, counts in self._splits.items()
            },
            sources=dict(self._sources),
            labels=tuple(sorted(self._labels)),
        )


def merge_tallies(tallies: Iterable[JoinTally]) -> JoinTally:
    """Adds tallies up, in any order."""
    splits: dict[str, SplitOutcome] = {}
    sources: dict[str, SourceTally] = {}
    labels: set[str] = set()
    for tally in tallies:
        labels.update(tally.labels)
        for split, outcome in tally.splits.items():
            splits[split] = merge_split_outcomes(splits.get(split, SplitOutcome()), outcome)
        for source, other in tally.sources.items():
            sources[source] = _merge_sources(sources.get(source, SourceTally()), other)
    return JoinTally(splits=splits, sources=sources, labels=tuple(sorted(labels)))


def _merge_sources(one: SourceTally, other: SourceTally) -> SourceTally:
    return SourceTally(
        referenced=one.referenced + other.referenced,
        matched=one.matched + other.matched,
        listed_key=_first(one.listed_key, other.listed_key),
        referenced_key=_first(one.referenced_key, other.referenced_key),
    )


def _is_only_an_id(joined: JoinedKey) -> bool:
    return any(reject.reason is Reason.UNKNOWN_IMAGE_ID for reject in joined.rejects)


def _first(one: str, other: str) -> str:
    return min(one, other, key=_by_depth) if one and other else one or other


def _by_depth(key: str) -> tuple[int, str]:
    # Beside the images there may be copies in folders of their own: the root is meant for these
    # less often.
    return key.count("/"), key


def check_join(tally: JoinTally, *, sources: Iterable[Source]) -> JoinTally:
    """Refuses a join in which no annotation names a listed image: a root is wrong.

    Returns:
        The tally as it is.

    Raises:
        InputError: With one listed key, one annotated one, and the likely mend.
    """
    for source in sources:
        counts = tally.sources.get(source.name, SourceTally())
        if counts.referenced and not counts.matched:
            listed = repr(counts.listed_key) if counts.listed_key else "no image"
            referenced = repr(counts.referenced_key) if counts.referenced_key else "no file"
            hints = _hints(listed=counts.listed_key, referenced=counts.referenced_key)
            raise InputError(
                uri=", ".join(source.roots),
                problem=(
                    f"none of the {counts.referenced} annotated images is listed here: the "
                    f"annotations name {referenced}, the listing holds {listed}; {next(hints)}"
                ),
            )
    return tally


def _hints(*, listed: str, referenced: str) -> Iterator[str]:
    if "\\" in referenced:
        yield "the annotations' names are Windows paths: replace the backslashes"
    if listed.endswith(f"/{referenced}"):
        yield f"move the root down: add /{listed.removesuffix(f'/{referenced}')} to `images`"
    if referenced.endswith(f"/{listed}"):
        yield f"move the root up: take /{referenced.removesuffix(f'/{listed}')} from `images`"
    listed_folder, referenced_folder = listed.rpartition("/")[0], referenced.rpartition("/")[0]
    if listed_folder and referenced and not referenced_folder:
        yield f"move the root down: try `images` with /{listed_folder} added"
    if referenced_folder and listed and not listed_folder:
        yield f"move the root up: try the folder that holds {referenced_folder}/"
    yield "check that `images` and `annotations` belong together"

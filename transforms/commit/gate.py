"""The gate: decides whether what was written may be committed.

The steps pass their counts on as data, because Beam's counters count retries twice.
"""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from shardbeam.configs.schema import DuplicatesConfig
from shardbeam.transforms.commit.allowance import (
    Emptied,
    Tolerance,
    describe_tolerance,
    find_emptied,
)
from shardbeam.transforms.core.counts import (
    LOST_ELEMENTS,
    REJECTS,
    REPEAT,
    Count,
    Counts,
    compare,
    count_all,
    encode_element,
)
from shardbeam.transforms.core.labels import NAMED_CLASSES, LabelMap
from shardbeam.transforms.core.reasons import DROPPED_OBJECTS, Exclusion, Reason
from shardbeam.transforms.core.records import Corrected
from shardbeam.transforms.core.sharding import NO_SPLIT
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.dataset.collectors.statistics import CountedStatistics, Statistics
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.metadata import DatasetSettings
from shardbeam.transforms.dataset.outcome import Outcome, Resumed, Reuse, SplitOutcome, Status
from shardbeam.transforms.dataset.rejects import (
    RejectsFile,
    describe_split_rejects,
    first_rejects,
    rejects_path,
)
from shardbeam.transforms.dataset.shard_result import Origin, ShardResult
from shardbeam.transforms.duplicates.duplicates import Duplicates

# What the pixels of a map without a class are.
VOID_PIXELS = "255 (to be ignored) or 0 (background)"


@dataclasses.dataclass(frozen=True)
class RunCounts:
    """What a run has counted, before it writes and after.

    Attributes:
        dataset: What the config says about the dataset.
        inputs: What was counted before the images were read.
        label_map: The labels.
        shards: All shards; empty before anything is written, like the next two.
        rejects: All files of rejects.
        counted: `{split: its statistics and corrections}`.
        duplicates: The duplicates, if they were looked for.
        planned: `{split: counts}` of what would be written, if a command only plans.
        emptied: What would then have no image left.
    """

    dataset: DatasetSettings
    inputs: InputCounts
    label_map: LabelMap
    shards: Sequence[ShardResult] = ()
    rejects: Sequence[RejectsFile] = ()
    counted: Mapping[str, CountedStatistics] = dataclasses.field(default_factory=dict)
    duplicates: Duplicates | None = None
    planned: Mapping[str, SplitOutcome] | None = None
    emptied: Mapping[str, Emptied] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def splits(self) -> Mapping[str, SplitOutcome]:
        """`{split: what became of its inputs}`."""
        if self.planned is not None:
            return self.planned
        splits, inputs = self.dataset.splits, self.inputs
        return count_splits(splits=splits, inputs=inputs, shards=self.shards, rejects=self.rejects)

    @functools.cached_property
    def statistics(self) -> Mapping[str, Statistics]:
        """`{split: what is in it}`."""
        return {split: each.statistics for split, each in self.counted.items()}

    @functools.cached_property
    def tolerance(self) -> Tolerance:
        """How many rejects it may have."""
        emptied = self.emptied if self.planned is not None else self._find_emptied()
        return Tolerance(
            max_ratio=self.dataset.max_reject_ratio,
            divided=tuple(self.dataset.config.get("fractions") or ()),
            # A sample does not show what the whole dataset has.
            emptied={} if self.dataset.config.get("limit") is not None else emptied,
        )

    def _find_emptied(self) -> dict[str, Emptied]:
        # {source: images that are passed on to be encoded, without those rejected there}
        left = Counter(self.inputs.images)
        for file in self.rejects:
            left.subtract(file.unwritten)
        return find_emptied(
            classes=((shard.split, shard.rejected_classes) for shard in self.shards),
            sources=((file.split, {each.source for each in file.allowed}) for file in self.rejects),
            written={name for split in self.statistics.values() for name in split.images_by_class},
            left={source for source, count in left.items() if count > 0},
        )

    @property
    def corrected(self) -> Iterator[Corrected]:
        """The first corrections of each kind in each split."""
        for each in self.counted.values():
            yield from each.corrected

    def joined(self, split: str) -> SplitOutcome:
        """Returns what the join has counted in a split."""
        return self.inputs.splits.get(split, SplitOutcome())


def find_lost(
    inputs: InputCounts,
    *,
    splits: Iterable[str],
    shards: Sequence[ShardResult],
    rejects: Sequence[RejectsFile],
    statistics: Mapping[str, CountedStatistics],
) -> list[str]:
    """Describes what a runner has lost or doubled anywhere in the graph, up to the moves.

    Args:
        inputs: The counts that `check_arrived` returned.
        splits: The splits' names.
        shards: All shards.
        rejects: All files of rejects.
        statistics: The statistics of each split.
    """
    counts = Counts()
    for part in (inputs.counts, *(shard.counts for shard in shards)):
        counts.add(part)
    for file in rejects:
        counts.add(Counts(received={REJECTS: file.received}))
    lost = counts.lost()
    planned = {shard.split: shard.num_shards for shard in shards}
    for split in splits:
        written = [shard for shard in shards if shard.split == split]
        # Each split has at least one shard, even an empty split.
        numbers = range(planned.get(split, 1))
        lost += compare(
            "shards",
            sent=count_all(map(encode_element, numbers)),
            received=count_all(encode_element(shard.shard_index) for shard in written),
        )
        if written:
            lost += compare(
                "statistics",
                sent=count_all(shard.key.encode() for shard in written),
                received=statistics[split].shards if split in statistics else Count(),
            )
    of_split: Counter[str] = Counter()
    for file in rejects:
        of_split[file.split] += sum(file.counts.values())
    # The number of a split's rejects decides the names of their files.
    for file in rejects:
        if rejects_path(file.first[0], counts=of_split) != file.file.path:
            lost.append(f"{REJECTS}: the name {file.file.path} does not fit their number")
    return lost


def count_splits(
    *,
    splits: Sequence[str],
    inputs: InputCounts,
    shards: Iterable[ShardResult],
    rejects: Iterable[RejectsFile],
) -> dict[str, SplitOutcome]:
    """Counts the results for each split.

    Returns:
        `{split: counts}`; inputs that belong to no split are counted under `NO_SPLIT`.
    """
    counts = {split: SplitOutcome() for split in splits}

    def add(split: str, more: SplitOutcome) -> None:
        counts.setdefault(split, SplitOutcome()).add(more)

    for split, listed in _listed_by_split(splits, inputs=inputs).items():
        add(split, SplitOutcome(listed=listed))
    for split, joined in inputs.splits.items():
        add(split, SplitOutcome(unannotated=joined.unannotated, excluded=joined.excluded))
    for shard in shards:
        written = SplitOutcome(
            images=shard.images,
            objects=shard.objects,
            examples=shard.examples,
            shards=1,
            num_bytes=shard.data.size_bytes,
            excluded=shard.excluded,
            corrections=shard.corrections,
        )
        add(shard.split, written)
    for file in rejects:
        add(file.split, SplitOutcome(rejected=file.counts, unlisted=file.unlisted))
    return counts


def _listed_by_split(splits: Sequence[str], *, inputs: InputCounts) -> dict[str, int]:
    """Counts the inputs of each split, by the listing, or by the join if the listing has none."""
    files = inputs.listing.files
    if set(files) - {NO_SPLIT}:
        return files
    counts = {split: inputs.splits.get(split, SplitOutcome()).listed for split in splits}
    if files:
        # Files listed but never joined show up here.
        if others := files[NO_SPLIT] - sum(counts.values()):
            counts[NO_SPLIT] = others
    elif NO_SPLIT in inputs.splits:
        # Rows of a table without images.
        counts[NO_SPLIT] = inputs.splits[NO_SPLIT].listed
    return counts


def count_reuse(previous: str, shards: Sequence[ShardResult]) -> Reuse | None:
    """Counts what was taken over from the previous version of the dataset.

    Args:
        previous: The folder of that version; empty if none was named.
        shards: All shards.
    """
    if not previous:
        return None
    copied = [shard for shard in shards if shard.origin is Origin.COPIED]
    return Reuse(
        previous=previous,
        copied_shards=len(copied),
        copied_images=sum(shard.images for shard in copied),
        unread_images=sum(shard.records for shard in copied),
        damaged_shards=sum(shard.origin is Origin.DAMAGED for shard in shards),
    )


def count_resumed(shards: Iterable[ShardResult]) -> Resumed:
    """Counts what was taken over from earlier runs that did not commit."""
    resumed = [shard for shard in shards if shard.resumed]
    return Resumed(
        shards=len(resumed),
        examples=sum(shard.examples for shard in resumed),
        images=sum(shard.images for shard in resumed),
    )


def decide(
    splits: Mapping[str, SplitOutcome],
    *,
    tolerance: Tolerance,
    rejects_root: str,
    rejects: Sequence[RejectsFile] = (),
    objects: bool = False,
    void: Sequence[str] = (),
    unmet: Sequence[str] = (),
    lost_elements: Sequence[str] = (),
) -> Outcome:
    """Decides whether a dataset may be committed.

    Args:
        splits: The counts of each split.
        tolerance: How many rejects there may be.
        rejects_root: Where the rejects files are.
        rejects: These files.
        objects: Whether the dataset must hold objects.
        void: Why no map of the dataset shows a class, if that is so.
        unmet: The expectations of the config that are not met.
        lost_elements: What the runner lost or doubled.

    Returns:
        FAILED if the runner lost elements, the counts do not add up, or a split has no examples
        (no reader could load it); REFUSED if too much was rejected, all objects were lost, no
        map shows a class, or an expectation is not met; otherwise APPROVED.
    """
    lost, empty = [], []
    for name, split in splits.items():
        total = sum(split.rejected.values())
        rejected = total - split.unlisted
        excluded = sum(split.excluded.values())
        if split.listed != split.images + rejected + excluded:
            lost.append(
                f"split {name!r}: {split.listed} listed, but {split.images} written + "
                f"{rejected} rejected + {excluded} excluded"
            )
        if name != NO_SPLIT and not split.examples:
            empty.append(f"split {name!r}")
    excess = tolerance.excess(splits)
    over = [*excess.values()]
    without = _describe_lost_objects(splits.values()) if objects else []
    if without and _is_mostly_lost(splits.values()):
        # Rejects and empty splits follow from it.
        over, empty = [], []
    status, lines = next(
        (
            (status, [f"{problem}{_ending(status)}: {found[0]}", *found[1:]])
            for found, problem, status in (
                (lost_elements, LOST_ELEMENTS, Status.FAILED),
                (lost, "the counts do not add up", Status.FAILED),
                (over, "too many rejects", Status.REFUSED),
                (empty, "no examples are left", Status.FAILED),
                (without, "no object is left", Status.REFUSED),
                (void, "no map shows a class", Status.REFUSED),
                (unmet, "it is not what the config expects", Status.REFUSED),
            )
            if found
        ),
        (Status.APPROVED, [""]),
    )
    if lost_elements:
        lines.append(REPEAT)
    elif status is not Status.APPROVED and not lost:
        lines += _describe_worst(splits, excess=excess, rejects=rejects)
    if over and not (lost_elements or lost or empty):
        lines.append(describe_tolerance(splits))
    return Outcome(
        status=status,
        splits=splits,
        message="\n".join(lines),
        rejects=rejects_root if any(split.rejected for split in splits.values()) else "",
    )


def _ending(status: Status) -> str:
    # For a refused build, the summary's heading says this; an error has no heading.
    return ", nothing was committed" if status is Status.FAILED else ""


def _describe_worst(
    splits: Mapping[str, SplitOutcome], *, excess: Collection[str], rejects: Sequence[RejectsFile]
) -> Iterator[str]:
    """Describes the rejects that belong to no split, or to a split that may not be committed."""
    for name, split in splits.items():
        is_bad = name == NO_SPLIT or name in excess or not split.examples
        if is_bad and any(split.rejected.values()):
            first = (one for file in rejects if file.split == name for one in file.first)
            yield describe_split_rejects(name, split.rejected, first=first_rejects(*first))


def decide_by_duplicates(
    outcome: Outcome, duplicates: Duplicates, *, settings: DuplicatesConfig, where: str
) -> Outcome:
    """Refuses an approved dataset if it has duplicates that the config refuses.

    Args:
        outcome: The outcome so far.
        duplicates: The duplicates that were found.
        settings: Which kinds of duplicates the config refuses.
        where: The URI of the file that lists them.
    """
    outcome = msgspec.structs.replace(outcome, duplicates=duplicates.counts)
    refused = {
        key: text
        for key, text in describe_duplicates(duplicates, splits=outcome.splits).items()
        if getattr(settings, key) == "refuse"
    }
    if outcome.status is not Status.APPROVED or not refused:
        return outcome
    passing = " ".join(f"--set duplicates.{key}=warn" for key in refused)
    message = "\n".join(
        [
            f"it has duplicates that the config refuses: {', '.join(refused)}",
            *refused.values(),
            f"all of them: {where}",
            "to keep one picture of each group, copy that file and give the copy to --exclude; to "
            f"let them pass: {passing}",
        ]
    )
    return msgspec.structs.replace(outcome, status=Status.REFUSED, message=message)


def describe_duplicates(
    duplicates: Duplicates, *, splits: Mapping[str, SplitOutcome]
) -> dict[str, str]:
    """Describes leaks and contradictions, if there are any: `{key of the config: text}`."""
    texts = duplicates.counts.describe({name: split.images for name, split in splits.items()})
    return {
        key: f"{text}, such as {'; '.join(getattr(duplicates, key))}" for key, text in texts.items()
    }


def name_classes(label_map: LabelMap) -> dict[str, Any]:
    """Returns the fields of an `Outcome` that count and name the classes."""
    names = sorted(label_map.ids, key=label_map.ids.__getitem__)
    return {"num_classes": len(names), "classes": tuple(names[:NAMED_CLASSES])}


def count_sources(run: RunCounts) -> dict[str, int]:
    """Counts the images that each source passes on, if a split has several sources."""
    sources = run.dataset.sources
    if not any("/" in name for name in sources):
        return {}
    return {name: run.inputs.images.get(name, 0) for name in sources}


def _add_up(splits: Iterable[SplitOutcome]) -> SplitOutcome:
    total = SplitOutcome()
    for split in splits:
        total.add(split)
    return total


def _count_lost(total: SplitOutcome) -> int:
    """Counts the images that are not written because all of their objects are lost."""
    return sum(
        counts.get(code, 0)
        for counts, code in (
            (total.rejected, Reason.OBJECTS_LOST.value),
            (total.excluded, Exclusion.OBJECTS_LOST.value),
        )
    )


def _is_mostly_lost(splits: Iterable[SplitOutcome]) -> bool:
    """Whether most images that are missing from the dataset have lost their objects."""
    total = _add_up(splits)
    rejected = sum(total.rejected.values()) - total.rejected.get(Reason.OBJECTS_LOST.value, 0)
    return _count_lost(total) > rejected


def _describe_lost_objects(splits: Iterable[SplitOutcome]) -> list[str]:
    """Describes why no object is written, if the source has some."""
    total = _add_up(splits)
    dropped = {code: count for code, count in total.corrections.items() if code in DROPPED_OBJECTS}
    causes = [f"{count:,} {code}" for code, count in dropped.items()]
    # Some unannotated images may have been rejected after they were counted.
    if 0 < total.unannotated >= total.images + sum(total.rejected.values()) - total.unlisted:
        causes.append(f"no annotations name any of the {total.images:,} images")
    fix = "--set objects=none"
    if lost := _count_lost(total):
        images = "image has lost all of its objects", "images have lost all objects"
        causes.insert(0, counted(lost, *images))
        fix += " --set objects_lost=keep"
    if total.objects or not causes:
        return []
    return [f"{', '.join(causes)}; if that is intended: {fix}"]


def describe_void_maps(run: RunCounts) -> list[str]:
    """Describes why no map of a dataset shows a class: all pixels are to be ignored, or 0.

    A sample does not show what the whole dataset has.
    """
    void = find_void_maps(run)
    found = [split for split in run.statistics.values() if split.pixels_by_class]
    if not void or len(void) < len(found) or run.dataset.config.get("limit") is not None:
        return []
    return [
        f"their pixels are {VOID_PIXELS}; if 255 is a class, say which: mask_values: {{255: 1}}; "
        "if the maps are not needed, leave them out (semantic_masks, semantic)"
    ]


def find_void_maps(run: RunCounts) -> list[str]:
    """Finds the splits whose maps hold nothing but pixels to be ignored, and background."""
    # Values of no class are named by their numbers, and so may classes be.
    no_classes = {"0", "255"} - {*run.label_map.ids}
    return [
        name
        for name, split in run.statistics.items()
        if "255" in no_classes & split.pixels_by_class.keys()
        and split.pixels_by_class.keys() <= no_classes
    ]

"""The outcome of a run, as its gate and its commit record it: the command's only source of truth.

An exception's type does not survive a runner, so exit codes and summaries come from this file.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Mapping

import msgspec

from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.dataset.findings import SAME_PICTURE, UNEQUAL_OBJECTS, KindFound

# The note with which the summary of a table without images begins.
ROWS_ALONE = "rows without images"


class Status(str, enum.Enum):
    """How a run ended, or how far it has come."""

    APPROVED = "approved"
    COMMITTED = "committed"
    REFUSED = "refused"
    FAILED = "failed"
    # A job that nobody waits for.
    SUBMITTED = "submitted"
    # A repair would have changed the dataset.
    NOT_REPAIRED = "not_repaired"


class SplitOutcome(msgspec.Struct, kw_only=True):
    """One split's counts, in images unless said otherwise.

    Attributes:
        listed: Images that the listing found; rows, where there are no images.
        examples: Examples written.
        shards: Shards written.
        num_bytes: Bytes of all shards.
        unannotated: Listed images that are kept although no annotation file names them; reading
            them may still end in a reject.
        rejected: `{reason: count}` of listed images and of references to missing ones.
        unlisted: How many of the rejects are not listed images (missing images, duplicate keys).
        excluded: `{rule: count}`.
        corrections: `{correction: count}` in what was written.
        images: Listed images that are written; each may make several Examples.
        objects: Objects that are written.
    """

    listed: int = 0
    examples: int = 0
    shards: int = 0
    num_bytes: int = 0
    unannotated: int = 0
    rejected: Mapping[str, int] = {}
    unlisted: int = 0
    excluded: Mapping[str, int] = {}
    corrections: Mapping[str, int] = {}
    images: int = 0
    objects: int = 0

    @property
    def listed_images(self) -> int:
        """Listed files that are images by their names."""
        others = (
            Exclusion.HIDDEN_FILE,
            Exclusion.NOT_AN_IMAGE_NAME,
            Exclusion.NOT_AN_ANNOTATION,
        )
        return self.listed - sum(self.excluded.get(rule.value, 0) for rule in others)

    @property
    def inputs(self) -> int:
        """What is written or rejected, and what the limit leaves out.

        Other files and pictures in the folder, and images that the config leaves out, must not make
        the share of rejects look small.
        """
        beyond_limit = self.excluded.get(Exclusion.BEYOND_LIMIT.value, 0)
        return self.listed + self.unlisted - sum(self.excluded.values()) + beyond_limit

    @property
    def reject_ratio(self) -> float:
        """Rejects over `inputs`; 0 where there are none."""
        return sum(self.rejected.values()) / self.inputs if self.inputs else 0.0

    def add(self, other: SplitOutcome) -> None:
        """Adds the counts of other inputs."""
        for name in self.__struct_fields__:
            one, more = getattr(self, name), getattr(other, name)
            total = one + more if isinstance(one, int) else add_counts(one, more)
            setattr(self, name, total)


def add_counts(*counts: Mapping[str, int]) -> dict[str, int]:
    """Adds up `{code: count}` mappings; the sum is sorted by code."""
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return dict(sorted(total.items()))


class Reuse(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the shards that a run took over from the previous version of its dataset.

    Attributes:
        previous: The previous version's folder.
        copied_shards: Shards that were copied.
        copied_images: Images in these shards.
        unread_images: Images that were not read thanks to the copies: those in the shards, and
            those that were rejected or excluded when the shards were written.
        damaged_shards: Shards that were written again, because they were damaged or gone there.
    """

    previous: str
    copied_shards: int = 0
    copied_images: int = 0
    unread_images: int = 0
    damaged_shards: int = 0


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of the shards that a run took over from earlier runs that did not commit.

    Attributes:
        shards: Shards that those runs had finished. If this run copies shards from the previous
            version, those that they had copied are not counted.
        examples: Examples in these shards.
        images: Images in these shards.
    """

    shards: int = 0
    examples: int = 0
    images: int = 0


class DuplicateCounts(msgspec.Struct, frozen=True, kw_only=True):
    """The numbers of duplicates in a dataset.

    Attributes:
        groups: Groups of pictures that are the same, or nearly.
        images: Images in these groups.
        equal: Groups in which all files are equal.
        leaks: Groups with images in several splits.
        leaking: `{split: images}` in these groups.
        contradictions: Groups in which the same file has different labels.
        near_contradictions: Groups in which nearly equal files have different image-level classes.
        near: The most bits in which the hashes of nearly equal pictures may differ; 0 if such
            pictures were not looked for.
        crowded: Pictures that resemble so many others that they were not compared with all of them.
        unlisted: Images in groups that `duplicates.parquet` has no room for.
        same_pictures: `{split: images}` with objects that have no class in common with those of an
            equal or nearly equal picture.
        cropped: Groups in which a picture is a crop of another one; 0 without `image.crop_hashes`.
        unequal_objects: `{split: images}` with objects that share a class with those of an equal or
            nearly equal picture, and are more or fewer of some class.
    """

    groups: int = 0
    images: int = 0
    equal: int = 0
    leaks: int = 0
    leaking: Mapping[str, int] = {}
    contradictions: int = 0
    near_contradictions: int = 0
    near: int = 0
    crowded: int = 0
    unlisted: int = 0
    same_pictures: Mapping[str, int] = {}
    cropped: int = 0
    unequal_objects: Mapping[str, int] = {}

    @property
    def findings(self) -> Mapping[str, Mapping[str, int]]:
        """`{kind of finding: {split: images}}` of images that contradict a similar one."""
        return {SAME_PICTURE: self.same_pictures, UNEQUAL_OBJECTS: self.unequal_objects}

    def describe_groups(self) -> str:
        """Says how many groups of which kinds there are: `2 groups of 4 equal files, ...`."""
        what = "equal or nearly equal pictures" if self.near else "equal files"
        if not self.groups:
            return f"no {what}"
        labels = "different labels of equal files" if self.near else "different labels"
        found = (
            (self.leaks, "in several splits"),
            (self.contradictions, f"with {labels}"),
            (self.near_contradictions, "with different classes of nearly equal ones"),
            (self.cropped, "with cropped copies"),
        )
        which = "".join(f", {number:,} {words}" for number, words in found if number)
        groups = "group" if self.groups == 1 else "groups"
        return f"{self.groups:,} {groups} of {self.images:,} {what}{which}"

    def describe(self, images: Mapping[str, int]) -> dict[str, str]:
        """Describes leaks and contradictions, if there are any: `{key of the config: text}`.

        Args:
            images: `{split: all of its images}`.
        """
        texts = {"leaks": self.describe_leaks(images)} if self.leaks else {}
        for key, files, what in (
            ("contradictions", "equal files", "labels"),
            ("near_contradictions", "nearly equal pictures", "classes"),
        ):
            if count := getattr(self, key):
                groups, have = ("group", "has") if count == 1 else ("groups", "have")
                texts[key] = f"{count:,} {groups} of {files} {have} different {what}"
        return texts

    def describe_leaks(self, images: Mapping[str, int]) -> str:
        """Says which share of each split is in another one, too, the greatest first.

        The largest split is left out: what matters is how much of a small one it holds. Datasets
        of older versions do not say how many images leak, only how many groups.

        Args:
            images: `{split: all of its images}`.
        """
        largest = max(self.leaking, key=lambda name: images.get(name, 0), default="")
        shares = {
            name: count / images[name]
            for name, count in self.leaking.items()
            if name != largest and images.get(name)
        }
        if not shares:
            are = "picture is" if self.leaks == 1 else "pictures are"
            return f"{self.leaks:,} {are} in several splits"
        parts = [
            f"{share:.1%} of {name} ({self.leaking[name]:,} of {images[name]:,} pictures)"
            for name, share in sorted(shares.items(), key=lambda item: (-item[1], item[0]))
        ]
        is_one = len(parts) == 1 and self.leaking[next(iter(shares))] == 1
        *others, last = parts
        listed = f"{', '.join(others)} and {last}" if others else last
        return f"{listed} {'is' if is_one else 'are'} in another split, too"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a run.

    Attributes:
        status: How it ended.
        splits: `{split: counts}`; inputs that belong to no split are under `NO_SPLIT`.
        sources: `{source: images}` that were passed on to be read, if a split has several sources.
        message: What went wrong and how to fix it, in one or a few lines; empty if nothing did.
        warnings: Results that may not be intended, one line each.
        notes: Facts that are worth knowing but no reason for a warning, one line each.
        rejects: The folder that holds the rejects files, where there are any rejects.
        corrections: The folder that holds the files of corrections, where there are any.
        reuse: What was taken over from the previous version; None where none was named.
        resumed: What was taken over from earlier runs that did not commit.
        duplicates: The numbers of duplicates; None if they were not looked for.
        findings: The findings, the most notable first.
        num_classes: How many classes the dataset has.
        classes: The names of the first ones, in the order of their ids.
        tolerated: The splits that lose more than 5 % of their images because the config tolerates
            it; empty if none does.
    """

    status: Status
    splits: Mapping[str, SplitOutcome]
    message: str = ""
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    rejects: str = ""
    corrections: str = ""
    reuse: Reuse | None = None
    resumed: Resumed = Resumed()
    sources: Mapping[str, int] = {}
    duplicates: DuplicateCounts | None = None
    findings: tuple[KindFound, ...] = ()
    num_classes: int = 0
    classes: tuple[str, ...] = ()
    tolerated: str = ""


class PlannedCounts(msgspec.Struct, frozen=True):
    """What a run is going to write, known once the join is done."""

    shards: int
    examples: int
    num_bytes: int


class WriteProgress(msgspec.Struct, frozen=True):
    """The progress of one shard, as its worker writes it to staging from time to time.

    Attributes:
        examples: Records processed so far, rejects included.
        finished: Whether the shard is done.
        resumed: Whether an earlier run wrote it.
    """

    examples: int
    finished: bool
    resumed: bool = False

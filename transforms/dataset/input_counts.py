"""Counts of the inputs: everything that a run counts before it writes.

The counts are data, not Beam counters, because those count retries twice: each bundle emits the
counts of its own elements, and all of them are merged into one, in any order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from shardbeam.transforms.core.counts import REJECTS, Counts, encode_element
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import MAX_CLASS_NAME, MAX_CLASSES, check_class_name
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.records import Category, ImageRef, Reject
from shardbeam.transforms.dataset.input_samples import InputSamples
from shardbeam.transforms.dataset.outcome import SplitOutcome, add_counts
from shardbeam.transforms.formats.join.join import JoinedKey

_MODULUS = 1 << 256


def fingerprint(*facts: str | int) -> str:
    """Digests one element of a set: the SHA-256 of its facts, in hex."""
    # Names, keys and URIs contain no NUL, so that different facts give different texts.
    return hashlib.sha256("\0".join(map(str, facts)).encode()).hexdigest()


def add_fingerprints(*fingerprints: str) -> str:
    """Adds up fingerprints of elements or sets modulo 2²⁵⁶: 64 hex digits, all 0 for none."""
    return f"{sum(int(each, 16) for each in fingerprints) % _MODULUS:064x}"


class ListingSummary(msgspec.Struct):
    """The counts of a listing.

    Attributes:
        files: `{split: listed images}`.
        fingerprint: The sum of the fingerprints of all listed files; it changes when a file does.
            For archives and tables it covers the files, not the images in them.
    """

    files: dict[str, int] = {}
    fingerprint: str = add_fingerprints()

    def add_images(self, number: int, *, split: str) -> None:
        """Counts images of one split."""
        self.files[split] = self.files.get(split, 0) + number

    def add_fingerprint(self, fingerprint: str) -> None:
        """Adds the fingerprint of more files."""
        self.fingerprint = add_fingerprints(self.fingerprint, fingerprint)


def fingerprint_file(file: ImageRef) -> str:
    """Digests the URI, the place in it, the size and the version of a listed file."""
    return fingerprint(file.uri, file.offset, file.size_bytes, file.version)


class DeclaredClasses(msgspec.Struct):
    """The classes that the inputs declare.

    Attributes:
        categories: The classes, each with its alphabetically first origin; the key is the class as
            JSON, without its origin.
        lost: `{class: how its objects are drawn that cannot be read}` (`Category.lost`).
        have_boxes: Whether any record that a program gives has boxes.
    """

    categories: dict[str, Category] = {}
    lost: dict[str, set[str]] = {}
    have_boxes: bool = False

    def add_category(self, category: Category) -> None:
        """Adds a declared class; a class that several files declare counts once.

        Raises:
            InputError: Its name is too long, or there are too many classes.
        """
        if category.lost:
            self._add_lost(category.name, {category.lost})
            return
        check_class_name(category.name, uri=category.origin)
        identity = msgspec.json.encode(msgspec.structs.replace(category, origin="")).decode()
        known = self.categories.get(identity)
        if known is None or category.origin < known.origin:
            self.categories[identity] = category
        if len(self.categories) > MAX_CLASSES:
            raise InputError(
                uri=category.origin,
                problem="declares one class too many: a dataset may have at most "
                f"{MAX_CLASSES:,} classes (docs/reference/limits.md)",
            )

    def add(self, other: DeclaredClasses) -> None:
        """Adds other classes; `other` stays as it is."""
        for category in other.categories.values():
            self.add_category(category)
        for name, shapes in other.lost.items():
            self._add_lost(name, shapes)
        self.have_boxes |= other.have_boxes

    def _add_lost(self, name: str, shapes: Iterable[str]) -> None:
        # What is no class, because it is too long or one too many, is no error here.
        is_class = len(name) <= MAX_CLASS_NAME and len(self.lost) < MAX_CLASSES
        if name in self.lost or is_class:
            self.lost.setdefault(name, set()).update(shapes)


class InputCounts(msgspec.Struct):
    """The counts of some inputs, or of all.

    Attributes:
        listing: The counts of the listing.
        splits: The result of the join, by split; `images` and `num_bytes` count the records that
            are passed on to be encoded, and their bytes.
        images: `{source: images, or rows, that are passed on to be encoded}`.
        counts: What was sent and received.
        classes: The declared classes.
        samples: What messages say about the inputs.
    """

    listing: ListingSummary = msgspec.field(default_factory=ListingSummary)
    splits: dict[str, SplitOutcome] = {}
    images: dict[str, int] = {}
    counts: Counts = msgspec.field(default_factory=Counts)
    classes: DeclaredClasses = msgspec.field(default_factory=DeclaredClasses)
    samples: InputSamples = msgspec.field(default_factory=InputSamples)

    def add_reject(self, reject: Reject) -> None:
        """Adds a rejected input, and counts it as sent to the files of rejects."""
        self.counts.send(REJECTS, encode_element(reject))
        split = self.splits.setdefault(reject.split, SplitOutcome())
        split.unlisted += not reject.listed
        split.rejected = add_counts(split.rejected, {reject.reason.value: 1})
        self.samples.add_reject(reject.split, reject)

    def add_joined(
        self, joined: JoinedKey, *, source: str, key: str, listed: int, referenced: int | None
    ) -> None:
        """Adds the result of the join for one key.

        Args:
            joined: The result.
            source: The source of the key.
            key: The key.
            listed: How many listed files have it.
            referenced: How many annotation entries name it; None if the source has no entries.
        """
        for label in joined.labels:
            self.classes.add_category(Category(name=label, origin="the images' names"))
        split = self.splits.setdefault(joined.split, SplitOutcome())
        split.listed += listed
        split.unannotated += joined.unannotated
        if joined.record is not None:
            split.images += 1
            split.examples += joined.record.examples
            split.num_bytes += joined.record.expected_bytes
            self.images[source] = self.images.get(source, 0) + 1
        if joined.excluded is not None:
            split.excluded = add_counts(split.excluded, {joined.excluded.value: 1})
        for reject in joined.rejects:
            self.add_reject(reject)
        self.samples.add_joined(
            joined, source=source, key=key, listed=listed, referenced=referenced
        )

    def add(self, other: InputCounts) -> None:
        """Adds the counts of other inputs; `other` stays as it is."""
        for name, number in other.listing.files.items():
            self.listing.add_images(number, split=name)
        self.listing.add_fingerprint(other.listing.fingerprint)
        for name, split in other.splits.items():
            self.splits.setdefault(name, SplitOutcome()).add(split)
        self.images = add_counts(self.images, other.images)
        self.counts.add(other.counts)
        self.classes.add(other.classes)
        self.samples.add(other.samples)

    def excluded(self, rule: Exclusion) -> int:
        """Returns how many inputs a rule has excluded."""
        return sum(split.excluded.get(rule.value, 0) for split in self.splits.values())

    def describe_linked_folders(self) -> str:
        """Describes the linked folders that are left out; empty where there are none."""
        count = self.excluded(Exclusion.LINKED_FOLDER)
        if not count:
            return ""
        folders = "1 linked folder is" if count == 1 else f"{count:,} linked folders are"
        first = ", ".join(map(repr, self.samples.excluded(Exclusion.LINKED_FOLDER)))
        return (
            f"{folders} left out, such as {first}: links are followed only to folders below the "
            "listed one; list the other folder as a source, or copy it into the listed one"
        )


def merge_inputs(parts: Iterable[InputCounts]) -> InputCounts:
    """Adds counts up, in any order."""
    merged = InputCounts()
    for part in parts:
        merged.add(part)
    merged.samples.cut()
    return merged

"""Counts of the inputs: everything that a run counts before it writes.

The counts are data, not Beam counters, because those count retries twice: each bundle emits the
counts of its own elements, and all of them are merged into one, in any order.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping

import msgspec

from shardbeam.transforms.core.counts import REJECTS, Counts, encode_element
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.labels import MAX_CLASS_NAME, MAX_CLASSES, check_class_name
from shardbeam.transforms.core.reasons import Exclusion, Reason
from shardbeam.transforms.core.records import (
    Category,
    Coding,
    ImageRef,
    MaskRole,
    Record,
    Reject,
    decode_annotations,
    image_id_of,
)
from shardbeam.transforms.core.text import counted
from shardbeam.transforms.dataset.first_sizes import FirstSizes
from shardbeam.transforms.dataset.outcome import SplitOutcome, add_counts
from shardbeam.transforms.dataset.rejects import first_rejects
from shardbeam.transforms.examples.geometry.segmentation import has_segmentation, mask_problem
from shardbeam.transforms.formats.join.join import JoinedKey
from shardbeam.transforms.formats.names import (
    is_undecodable_name,
    listing_exclusion,
    normalize_for_match,
)
from shardbeam.transforms.storage.archives.open import is_archive_name
from shardbeam.transforms.storage.image_bytes import LFS_POINTER_BYTES

# What messages say about the inputs: the first ones, some names, and whether they fit together.

SAMPLE_KEYS = 64
# Sums of rounded fractions may be a little more than 1.
_MOST_FRACTION = 1 + 1e-6
# Ids of images that are compared in each split: those with the smallest hashes.
_COMPARED_IDS = 256
# Names that a line gives as examples.
_NAMED = 3
# Images that a command that only plans resizes: each takes some 10 ms.
_SAMPLED = 16
_SHOWN_CHARACTERS = 60
# Rules for which messages name the first images or files that they leave out.
_NAMED_RULES = frozenset({Exclusion.UNANNOTATED, Exclusion.IN_NO_SPLIT, Exclusion.LINKED_FOLDER})


class SourceSamples(msgspec.Struct):
    """What the join has seen of one source.

    Attributes:
        in_pixels: Whether a box reaches beyond 1, so that boxes cannot all be fractions.
        fractions: As long as there is no such box: how many boxes with an area lie within 0 to 1.
        numbered: How many images make Examples and have an id that is a number.
        unnumbered: How many images make Examples and have no such id.
        referenced: How many images its annotation files name, by key, or by an id without a key.
        matched: How many of these are listed. The names below are kept only while there are none.
        listed_key: The listed image key with the fewest folders; of several, the alphabetically
            first. Empty where there is none.
        referenced_key: The same among the keys that the annotation files name.
        listed_sample: The listed keys whose names, without folders, have the smallest hashes.
            `check_join` uses them to find out what would match.
        referenced_sample: The same among the keys that the annotation files name.
    """

    in_pixels: bool = False
    fractions: int = 0
    numbered: int = 0
    unnumbered: int = 0
    referenced: int = 0
    matched: int = 0
    listed_key: str = ""
    referenced_key: str = ""
    listed_sample: set[str] = set()
    referenced_sample: set[str] = set()

    def add(self, other: SourceSamples) -> None:
        """Adds another part of the same source."""
        self.in_pixels |= other.in_pixels
        self.fractions = 0 if self.in_pixels else self.fractions + other.fractions
        self.numbered += other.numbered
        self.unnumbered += other.unnumbered
        self.referenced += other.referenced
        self.matched += other.matched
        if self.matched:
            self.listed_key = self.referenced_key = ""
            self.listed_sample = self.referenced_sample = set()
            return
        self.listed_key = _first(self.listed_key, other.listed_key)
        self.referenced_key = _first(self.referenced_key, other.referenced_key)
        self.listed_sample.update(other.listed_sample)
        self.referenced_sample.update(other.referenced_sample)
        # Sort only now and then, not for every key.
        if max(len(self.listed_sample), len(self.referenced_sample)) > 2 * SAMPLE_KEYS:
            self.cut_samples()

    def add_boxes(self, annotations: bytes, *, first_pixel: float) -> None:
        """Counts an image's boxes, until one reaches beyond 1: the annotations are decoded for it.

        Args:
            annotations: The image's annotations, encoded.
            first_pixel: The number of the first pixel, which the format has subtracted.
        """
        if self.in_pixels:
            return
        for item in decode_annotations(annotations).objects:
            xmin, ymin, xmax, ymax = item.bbox
            xmin, ymin = xmin + first_pixel, ymin + first_pixel
            if not (xmin < xmax and ymin < ymax):
                continue
            if min(xmin, ymin) < 0 or max(xmax, ymax) > _MOST_FRACTION:
                self.in_pixels, self.fractions = True, 0
                return
            self.fractions += 1

    def cut_samples(self) -> None:
        """Cuts each sample to `SAMPLE_KEYS` keys."""
        self.listed_sample = set(sorted(self.listed_sample, key=_by_hash)[:SAMPLE_KEYS])
        self.referenced_sample = set(sorted(self.referenced_sample, key=_by_hash)[:SAMPLE_KEYS])


class MaskSamples(msgspec.Struct):
    """What the source gives for the masks of objects, if the config asks for masks.

    Attributes:
        usable: Whether a mask can be drawn, or a file of masks is there. Nothing is counted from
            then on.
        objects: The number of objects.
        given: How many of these have a segmentation.
        first: The alphabetically first image with one, its text, shortened, and why it cannot be
            drawn; empty if there is none.
    """

    usable: bool = False
    objects: int = 0
    given: int = 0
    first: str = ""

    def add_record(self, record: Record) -> None:
        """Adds the objects of a record, until one can have a mask."""
        if self.usable:
            return
        found = decode_annotations(record.annotations)
        size = (0, 0) if found.normalized else (found.width, found.height)
        self.usable = MaskRole.VOC_OBJECT in found.masks
        self.objects += len(found.objects)
        for item in found.objects:
            if not has_segmentation(item.segmentation):
                continue
            problem = mask_problem(item.segmentation, size=size, box=item.bbox)
            if self.usable or not problem:
                self.usable = True
                return
            self.given += 1
            # On one line, as messages are, also of an indented file.
            text = " ".join(item.segmentation.decode(errors="replace").split())
            rest = "…" if len(text) > _SHOWN_CHARACTERS else ""
            shown = f"{text[:_SHOWN_CHARACTERS]}{rest}"
            self.first = _earlier(self.first, f"{record.key}: {shown}: {problem}")

    def add(self, other: MaskSamples) -> None:
        """Adds another part."""
        self.usable |= other.usable
        self.objects += other.objects
        self.given += other.given
        self.first = _earlier(self.first, other.first)


class SampledImage(msgspec.Struct, frozen=True, array_like=True):
    """An image that is read to estimate what all of them take once they are resized.

    Attributes:
        draw: Hash of its key; the images with the smallest ones are the sample.
        key: Its key.
        image: The place of its bytes.
        examples: How many Examples it makes.
        expected_bytes: The length of these if the image is stored as it is.
    """

    draw: int
    key: str
    image: ImageRef
    examples: int
    expected_bytes: int


class Foreseen(msgspec.Struct):
    """Images that a build will reject, as far as their names and sizes show.

    Attributes:
        undecodable: `{split: images whose extension names a format that cannot be decoded}`.
        empty: `{split: images whose files have no bytes}`.
        examples: `{split: the Examples expected of both}`.
        first: The alphabetically first of the undecodable ones; empty if there is none.
        first_empty: The first of the empty ones, in alphabetical order.
        short: How many images are as short as a pointer of Git LFS.
        shortest: The shortest of these; a command that only plans reads them.
        sampled: Some images; a command that only plans resizes them if the build would.
    """

    undecodable: dict[str, int] = {}
    empty: dict[str, int] = {}
    examples: dict[str, int] = {}
    first: str = ""
    first_empty: tuple[str, ...] = ()
    short: int = 0
    shortest: tuple[ImageRef, ...] = ()
    sampled: tuple[SampledImage, ...] = ()

    def add_record(self, record: Record, *, split: str) -> None:
        """Adds an image that is passed on to be encoded."""
        if record.image is not None and is_empty(record.image):
            self.empty = add_counts(self.empty, {split: 1})
            self.examples = add_counts(self.examples, {split: record.examples})
            self._add_empty(record.key)
        elif is_undecodable_name(record.key):
            self.undecodable = add_counts(self.undecodable, {split: 1})
            self.examples = add_counts(self.examples, {split: record.examples})
            self.first = _earlier(self.first, record.key)
        elif record.image is not None:
            if is_short(record.image):
                self.short += 1
                self._add_shortest(record.image)
            draw = zlib.crc32(record.key.encode())
            if len(self.sampled) < _SAMPLED or draw < self.sampled[-1].draw:
                size = record.expected_bytes
                self._add_sampled(
                    SampledImage(draw, record.key, record.image, record.examples, size)
                )

    def rejects(self, split: str) -> dict[str, int]:
        """Returns the rejects of a split, by reason."""
        counts = {
            Reason.UNSUPPORTED_IMAGE.value: self.undecodable.get(split, 0),
            Reason.ZERO_BYTE.value: self.empty.get(split, 0),
        }
        return {reason: count for reason, count in counts.items() if count}

    def add(self, other: Foreseen) -> None:
        """Adds other images."""
        self.undecodable = add_counts(self.undecodable, other.undecodable)
        self.empty = add_counts(self.empty, other.empty)
        self.examples = add_counts(self.examples, other.examples)
        self.first = _earlier(self.first, other.first)
        self.short += other.short
        self._add_empty(*other.first_empty)
        self._add_shortest(*other.shortest)
        self._add_sampled(*other.sampled)

    def _add_empty(self, *keys: str) -> None:
        self.first_empty = tuple(sorted((*self.first_empty, *keys))[:_NAMED])

    def _add_shortest(self, *images: ImageRef) -> None:
        ordered = sorted({*self.shortest, *images}, key=lambda each: (each.size_bytes, each.uri))
        self.shortest = tuple(ordered[:_NAMED])

    def _add_sampled(self, *images: SampledImage) -> None:
        ordered = sorted((*self.sampled, *images), key=lambda each: (each.draw, each.key))
        self.sampled = tuple(ordered[:_SAMPLED])


def is_empty(image: ImageRef) -> bool:
    """Whether the listing shows that an image's file has no bytes."""
    # Records of a program have no version, because their files were not listed.
    size = image.decoded_bytes if image.coding is Coding.DEFLATED else image.size_bytes
    is_file = image.coding in (Coding.FILE, Coding.DEFLATED)
    return is_file and not size and bool(image.version) and not image.problem


def is_short(image: ImageRef) -> bool:
    """Whether an image's file is as short as a pointer of Git LFS."""
    return image.coding is Coding.FILE and image.size_bytes <= LFS_POINTER_BYTES


class InputSamples(msgspec.Struct):
    """What messages say about some inputs, or about all.

    Attributes:
        sources: What the join has seen, by source.
        first_rejects: The first rejects, by split.
        first_excluded: `{rule: {split: the first keys that it leaves out}}`, for the rules whose
            messages name some; of files that are no images, these are the archives.
        image_ids: `{split: {id: the first two images that have it}}`, for a sample of the ids.
        masks: What the source gives for masks, if the config asks for them.
        foreseen: Images that will be rejected, as far as their names and sizes show.
    """

    sources: dict[str, SourceSamples] = {}
    first_rejects: dict[str, tuple[Reject, ...]] = {}
    first_excluded: dict[str, dict[str, tuple[str, ...]]] = {}
    image_ids: dict[str, dict[str, tuple[str, ...]]] = {}
    masks: MaskSamples = msgspec.field(default_factory=MaskSamples)
    foreseen: Foreseen = msgspec.field(default_factory=Foreseen)

    def source(self, name: str) -> SourceSamples:
        """Returns what the join has seen of a source."""
        return self.sources.setdefault(name, SourceSamples())

    def add_reject(self, split: str, *rejects: Reject) -> None:
        """Adds rejects of a split."""
        known = self.first_rejects.get(split, ())
        self.first_rejects[split] = first_rejects(*known, *rejects)

    def add_joined(
        self, joined: JoinedKey, *, source: str, key: str, listed: int, referenced: int | None
    ) -> None:
        """Adds the result of the join for one key (`InputCounts.add_joined`)."""
        seen, record, excluded = self.source(source), joined.record, joined.excluded
        if excluded in _NAMED_RULES or (
            excluded is Exclusion.NOT_AN_IMAGE_NAME and is_archive_name(key)
        ):
            assert excluded is not None
            self._add_excluded(excluded.value, joined.split, key)
        if record is not None:
            self.foreseen.add_record(record, split=joined.split)
            image_id = image_id_of(record.annotations)
            if record.examples:
                is_numbered = _is_number(image_id)
                seen.numbered += is_numbered
                seen.unnumbered += not is_numbered
            if image_id not in ("", record.key):
                self._add_image_id(joined.split, image_id, record.key)
        if referenced is not None:
            seen.add(_sample_key(joined, key=key, listed=listed, referenced=referenced))

    def add(self, other: InputSamples) -> None:
        """Adds what was seen of other inputs; `other` stays as it is."""
        for name, seen in other.sources.items():
            self.source(name).add(seen)
        for split, rejects in other.first_rejects.items():
            self.add_reject(split, *rejects)
        for rule, first in other.first_excluded.items():
            for split, keys in first.items():
                self._add_excluded(rule, split, *keys)
        for split, ids in other.image_ids.items():
            for image_id, keys in ids.items():
                self._add_image_id(split, image_id, *keys)
        self.masks.add(other.masks)
        self.foreseen.add(other.foreseen)

    def cut(self) -> None:
        """Cuts all samples to their sizes, so that they do not depend on the order of parts."""
        for seen in self.sources.values():
            seen.cut_samples()
        self.image_ids = {split: _smallest_ids(ids) for split, ids in self.image_ids.items()}

    def excluded(self, rule: Exclusion, *, split: str | None = None) -> tuple[str, ...]:
        """Returns the first keys that a rule leaves out, of one split or of all."""
        first = self.first_excluded.get(rule.value, {})
        keys = (key for name, keys in first.items() if split in (None, name) for key in keys)
        return tuple(sorted(keys)[:_NAMED])

    def repeated_ids(self) -> dict[str, tuple[str, tuple[str, ...]]]:
        """Finds the splits in which images have the same id, as ids count within one file.

        Only a sample of the ids is compared, all of them if a split has at most 256. If several
        files number from 1, most ids repeat, so that the sample shows it.

        Returns:
            `{split: (such an id, the first two images that have it)}`
        """
        found = {}
        for split, ids in self.image_ids.items():
            repeated = [item for item in _smallest_ids(ids).items() if len(item[1]) > 1]
            if repeated:
                found[split] = min(repeated, key=lambda item: (len(item[0]), item))
        return found

    def describe_archives(self) -> str:
        """Describes the archives that are left out, with the fix; empty where there are none."""
        archives = self.excluded(Exclusion.NOT_AN_IMAGE_NAME)
        if not archives:
            return ""
        kind = archives[0].rpartition(".")[2]
        return (
            f"archives in a folder, such as {archives[0]}, are not opened: name the archive "
            f"itself, or a pattern for several, such as 'FOLDER/*.{kind}'"
        )

    def _add_excluded(self, rule: str, split: str, *keys: str) -> None:
        first = self.first_excluded.setdefault(rule, {})
        first[split] = tuple(sorted({*first.get(split, ()), *keys})[:_NAMED])

    def _add_image_id(self, split: str, image_id: str, *keys: str) -> None:
        ids = self.image_ids.setdefault(split, {})
        ids[image_id] = tuple(sorted((*ids.get(image_id, ()), *keys))[:2])
        # Sort only now and then, not for every id.
        if len(ids) > 2 * _COMPARED_IDS:
            self.image_ids[split] = _smallest_ids(ids)


def _sample_key(joined: JoinedKey, *, key: str, listed: int, referenced: int) -> SourceSamples:
    if joined.excluded is Exclusion.NOT_AN_ANNOTATION:
        return SourceSamples()
    if listed and referenced:
        return SourceSamples(referenced=1, matched=1)
    names_a_file = all(each.reason is not Reason.UNKNOWN_IMAGE_ID for each in joined.rejects)
    listed_key = key if listed and listing_exclusion(key) is None else ""
    referenced_key = key if referenced and names_a_file else ""
    return SourceSamples(
        referenced=int(referenced > 0),
        listed_key=listed_key,
        referenced_key=referenced_key,
        listed_sample={listed_key} - {""},
        referenced_sample={referenced_key} - {""},
    )


def _first(one: str, other: str) -> str:
    return min(one, other, key=_by_depth) if one and other else one or other


def _smallest_ids(ids: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    chosen = sorted(ids, key=lambda image_id: (zlib.crc32(image_id.encode()), image_id))
    return {image_id: ids[image_id] for image_id in chosen[:_COMPARED_IDS]}


def _is_number(image_id: str) -> bool:
    try:
        int(image_id)
    except ValueError:
        return False
    return True


def _earlier(one: str, other: str) -> str:
    return min(one, other) if one and other else one or other


def _by_hash(key: str) -> tuple[int, str]:
    return zlib.crc32(normalize_for_match(key, "name").encode()), key


def _by_depth(key: str) -> tuple[int, str]:
    # Copies of images often lie deeper; the root is usually the shallower folder.
    return key.count("/"), key


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
        outlines: How many objects of these have outlines that are not written.
        counts: What was sent and received.
        classes: The declared classes.
        samples: What messages say about the inputs.
        first_sizes: The first images of each source with the sizes that annotations give.
    """

    listing: ListingSummary = msgspec.field(default_factory=ListingSummary)
    splits: dict[str, SplitOutcome] = {}
    images: dict[str, int] = {}
    outlines: int = 0
    counts: Counts = msgspec.field(default_factory=Counts)
    classes: DeclaredClasses = msgspec.field(default_factory=DeclaredClasses)
    samples: InputSamples = msgspec.field(default_factory=InputSamples)
    first_sizes: FirstSizes = msgspec.field(default_factory=FirstSizes)

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
            self.outlines += joined.outlines
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
        self.outlines += other.outlines
        self.counts.add(other.counts)
        self.classes.add(other.classes)
        self.samples.add(other.samples)
        self.first_sizes.add(other.first_sizes)

    def excluded(self, rule: Exclusion) -> int:
        """Returns how many inputs a rule has excluded."""
        return sum(split.excluded.get(rule.value, 0) for split in self.splits.values())

    def describe_linked_folders(self) -> str:
        """Describes the linked folders that are left out; empty where there are none."""
        count = self.excluded(Exclusion.LINKED_FOLDER)
        if not count:
            return ""
        folders = counted(count, "linked folder is", "linked folders are")
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

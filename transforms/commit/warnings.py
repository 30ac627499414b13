"""Warnings about results that may not be intended."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from shardbeam.transforms.commit.gate import (
    VOID_PIXELS,
    count_sources,
    describe_duplicates,
    describe_excess,
    describe_tolerance,
    find_void_maps,
)
from shardbeam.transforms.core.labels import LabelMap, list_classes
from shardbeam.transforms.core.reasons import Correction, Exclusion
from shardbeam.transforms.core.records import BoxFormat, BoxReading, Corrected
from shardbeam.transforms.core.sharding import NO_SPLIT, share_out
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.dataset.collectors.statistics import Statistics, first_corrections
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.metadata import DatasetSettings
from shardbeam.transforms.dataset.outcome import SplitOutcome
from shardbeam.transforms.dataset.rejects import (
    name_image,
)
from shardbeam.transforms.duplicates.duplicates import Duplicates
from shardbeam.transforms.examples.geometry.boxes import (
    BOXES,
    EXCHANGED,
    OUTSIDE,
    TRIED,
    TURNED,
    other_reading,
)
from shardbeam.transforms.formats.names import FILE_FOLDERS, is_split_name

# Fewer boxes do not show what their numbers mean.
_FEW_BOXES = 3

# If a larger share of a source's boxes leave their image, or have exchanged corners, their numbers
# mean something else.
_OUTSIDE_SHARE, _EXCHANGED_SHARE = 1 / 20, 1 / 2

_NUMBERS: Mapping[BoxFormat, str] = {
    "xywh": "left, top, width and height",
    "xyxy": "left, top, right and bottom",
    "cxcywh": "centre, width and height",
    "yxyx": "top, left, bottom and right",
}

_SOURCE_ID = "image/source_id"

# What a warning about classes says after their number; a finding says the same.
NEVER_OCCUR = "declared classes never occur"

# Images that a warning names as examples.
_NAMED = 3


def find_warnings(
    inputs: InputCounts,
    *,
    splits: Mapping[str, SplitOutcome],
    label_map: LabelMap,
    dataset: DatasetSettings,
    statistics: Mapping[str, Statistics] | None = None,
    duplicates: Duplicates | None = None,
    corrected: Iterable[Corrected] = (),
    readings: Iterable[Mapping[str, Mapping[str, int]]] = (),
) -> tuple[str, ...]:
    """Returns warnings about results that may not be intended, one line each.

    Args:
        inputs: What was counted before the images were read.
        splits: The counts of each split.
        label_map: The labels.
        dataset: What the config says about the dataset.
        statistics: `{split: what is in it}`; None before anything is written.
        duplicates: The duplicates, if they were looked for.
        corrected: The first corrections of each kind.
        readings: `{source: counts of its boxes}` of each shard (`box_readings`).
    """
    # Once shards are written, the gate says this.
    over = describe_excess(splits, max_ratio=dataset.max_reject_ratio) if statistics is None else []
    if over:
        over[-1] += f"; {describe_tolerance(splits)}"
    return (
        *dataset.warnings,
        *(f"a build would be refused: {split}" for split in over),
        *_warn_of_classes(inputs, label_map=label_map, dataset=dataset, statistics=statistics),
        *warn_of_void_maps(statistics or {}, classes=label_map.ids),
        *_warn_of_groups(inputs, config=dataset.config),
        *_warn_of_units(inputs, dataset=dataset),
        *_warn_of_readings(readings, dataset=dataset),
        *(_warn_of_unannotated(splits) if dataset.objects else ()),
        *_warn_of_sources(count_sources(inputs, dataset=dataset)),
        *_warn_of_image_ids(inputs, config=dataset.config),
        *(describe_duplicates(duplicates, splits=splits).values() if duplicates else ()),
        *_warn_of_exclude(splits, named=dataset.excluded),
        *_warn_of_sizes(splits, corrected=first_corrections(corrected), config=dataset.config),
        *filter(None, [inputs.describe_linked_folders()]),
    )


_SIZE_WARNINGS = {
    Correction.ANNOTATED_SIZE_SCALED: (
        "of the same aspect ratio: annotations in pixels were scaled to the image; with "
        "image.annotated_size: ignore, they are taken as pixels of the image; with reject, such "
        "images are rejected"
    ),
    Correction.SIZE_CORRECTED: (
        "of another aspect ratio: all boxes lie in the image, and were taken as pixels of it; with "
        "image.annotated_size: reject, such images are rejected"
    ),
}


def _warn_of_sizes(
    splits: Mapping[str, SplitOutcome],
    *,
    corrected: Sequence[Corrected],
    config: Mapping[str, Any],
) -> Iterator[str]:
    """Warns of images that are annotated in another size, unless the config allows it."""
    for correction, text in _SIZE_WARNINGS.items():
        count = sum(split.corrections.get(correction.value, 0) for split in splits.values())
        lines = (line for line in corrected if line.what == correction.value)
        examples = ", ".join(
            f"{name_image(line.source, line.key)} (as {'x'.join(map(str, line.before))})"
            for line in itertools.islice(lines, _NAMED)
        )
        if count and config["image"]["annotated_size"] != "ignore":
            images = "1 image is" if count == 1 else f"{count:,} images are"
            yield f"{images} annotated in another size, such as {escape(examples)}, {text}"


def _warn_of_exclude(splits: Mapping[str, SplitOutcome], *, named: int) -> Iterator[str]:
    """Warns if the file in `exclude` names images that were not found."""
    code = Exclusion.EXCLUDED_BY_FILE.value
    found = sum(split.excluded.get(code, 0) for split in splits.values())
    if found < named:
        yield f"of the {named:,} images that the file in `exclude` names, {found:,} were found"


def _warn_of_classes(
    inputs: InputCounts,
    *,
    label_map: LabelMap,
    dataset: DatasetSettings,
    statistics: Mapping[str, Statistics] | None,
) -> Iterator[str]:
    """Warns of classes and class ids that are probably a mistake."""
    names = sorted(label_map.ids, key=label_map.ids.__getitem__)
    labels = dataset.config.get("labels", {})
    is_chosen = any(labels.get(key) for key in ("include", "exclude", "merge"))
    if dataset.classifies and len(names) == 1 and not is_chosen:
        yield (
            f"all images have the same class, {names[0]!r}; if that is not intended, check which "
            "folders, or which column or key, the classes are taken from"
        )
    folders = [
        name
        for name in names
        if dataset.classifies and (is_split_name(name) or name.casefold() in FILE_FOLDERS)
    ]
    if folders:
        yield (
            f"classes are named like splits or like folders of files: {list_classes(folders)}; if "
            "these are not classes, check the root of the images and where splits are named, or "
            "leave them out: labels.exclude"
        )
    if label_map.background:
        yield (
            f"the category with the id 0, {list_classes(label_map.background)}, counts as the "
            "background, not as a class: its objects are left out; labels.first_id: 0 keeps it, "
            "and so does labels.include with its name"
        )
    if label_map.shifted_by:
        yield (
            f"class {label_map.shifted_by!r} has the id 0, which readers of objects reserve for "
            "the background: 1 is added to all ids; labels.first_id: 0 keeps them"
        )
    # A sample does not show what the whole dataset has.
    if dataset.config.get("limit") is not None:
        return
    objects, crowds = (
        sum(getattr(split, name) for split in (statistics or {}).values())
        for name in ("objects", "crowds")
    )
    if objects and crowds == objects:
        yield (
            f"all {objects:,} objects are crowds (iscrowd), which many trainers skip; if they are "
            "single objects, set iscrowd to 0 in the source"
        )
    found = {*names}
    if statistics is not None:
        found = {name for split in statistics.values() for name in split.images_by_class}
        found |= {label_map.names.get(name, name) for name in dataset.absent}
    lost = _find_lost_classes(inputs, found=found, label_map=label_map, labels=labels)
    absent = [name for name in names if name not in found and name not in lost]
    if absent:
        yield f"{len(absent):,} of {len(names):,} {NEVER_OCCUR}: {list_classes(absent)}"
    if lost:
        classes = "1 class is" if len(lost) == 1 else f"{len(lost):,} classes are"
        yield (
            f"{classes} in no Example, because no object of the source has a box: "
            f"{list_classes([*lost.values()])}; draw boxes for them, or leave them out with "
            "labels.exclude"
        )


def _find_lost_classes(
    inputs: InputCounts, *, found: Collection[str], label_map: LabelMap, labels: Mapping[str, Any]
) -> dict[str, str]:
    """Finds the classes that the dataset lacks because their objects have no box.

    Returns:
        `{written name: the class with its shapes}`, without classes that the config leaves out.
    """
    if not inputs.classes.lost:
        return {}
    merged = {old: new for new, olds in labels.get("merge", {}).items() for old in olds}
    lost: dict[str, str] = {}
    for name in sorted(inputs.classes.lost):
        written = merged.get(name, name)
        if written not in found and name not in label_map.left_out:
            lost.setdefault(written, f"{name} ({', '.join(sorted(inputs.classes.lost[name]))})")
    return lost


def _warn_of_units(inputs: InputCounts, *, dataset: DatasetSettings) -> Iterator[str]:
    """Warns of sources with one or two boxes that are read as pixels and may be fractions.

    `check_units` refuses sources with more of them.
    """
    for name, seen in sorted(inputs.samples.sources.items()):
        if seen.fractions:
            boxes = "the only box lies" if seen.fractions == 1 else "the only two boxes lie"
            where = f"source {name!r}: " if len(dataset.sources) > 1 else ""
            yield (
                f"{where}{boxes} within 0 to 1, and may be a fraction of the image's "
                "sides; boxes are read as pixels here: box_units: fraction changes that for COCO "
                "and LVIS, and tables may have fractions"
            )


def _warn_of_readings(
    readings: Iterable[Mapping[str, Mapping[str, int]]], *, dataset: DatasetSettings
) -> Iterator[str]:
    """Warns of sources whose boxes leave their images, and names the readings that fit."""
    totals: dict[str, Counter[str]] = {}
    for shard in readings:
        for source, counts in shard.items():
            totals.setdefault(source, Counter()).update(counts)
    for source, total in sorted(totals.items()):
        reading = dataset.box_readings.get(source)
        if reading is None:
            continue
        fitting = [
            other
            for other in reading.fitting
            if _fits(total[other_reading(reading.format, other)], of=total[TRIED])
        ]
        boxes = f"of the {total[BOXES]:,} boxes"
        if len(dataset.sources) > 1:
            boxes += f" of source {source!r}"
        if _are_many(total[OUTSIDE], of=total[BOXES], share=_OUTSIDE_SHARE):
            what = f"{total[OUTSIDE]:,} {boxes} leave their image by more than a pixel"
        elif fitting and _are_many(total[EXCHANGED], of=total[BOXES], share=_EXCHANGED_SHARE):
            what = f"the corners of {total[EXCHANGED]:,} {boxes} were exchanged"
        else:
            continue
        yield f"{what}; {_describe_readings(total, fitting=fitting, reading=reading)}"


def _are_many(number: int, *, of: int, share: float) -> bool:
    return number >= _FEW_BOXES and number > share * of


def _fits(number: int, *, of: int) -> bool:
    """Whether enough boxes lie inside their images under a reading to cause no warning."""
    return number > 0 and not _are_many(of - number, of=of, share=_OUTSIDE_SHARE)


def _describe_readings(
    total: Mapping[str, int], *, fitting: Sequence[BoxFormat], reading: BoxReading
) -> str:
    """Describes what would put the boxes of images with such boxes into these images."""
    causes = []
    for other in fitting:
        number = total[other_reading(reading.format, other)]
        fix = (
            f"set box_format: {other} (--box-format {other})"
            if reading.has_keys
            else "correct the files, because this format has no others"
        )
        causes.append(
            f"read as {_NUMBERS[other]}, {_all_or(number, of=total[TRIED])} boxes of these images "
            f"lie in them: if that is what they are, {fix}"
        )
    if _fits(total[TURNED], of=total[TRIED]):
        causes.append(
            f"{_all_or(total[TURNED], of=total[TRIED])} boxes of these images fit the images "
            "turned by 90 degrees: they may have been drawn on upright pictures whose EXIF "
            "orientation was removed later"
        )
    return "; ".join(causes) or (
        "no other reading of their numbers puts the boxes into these images: check that images and "
        "annotations belong together"
    )


def _all_or(number: int, *, of: int) -> str:
    return f"all {of:,}" if number == of else f"{number:,} of {of:,}"


def _warn_of_groups(inputs: InputCounts, *, config: Mapping[str, Any]) -> Iterator[str]:
    """Warns of splits whose exact size is not met because groups stay whole."""
    # A sample does not show the sizes of the splits.
    if not (config.get("exact") and config.get("group_by")) or config.get("limit"):
        return
    images = {
        split: inputs.splits.get(split, SplitOutcome()).images for split in config["fractions"]
    }
    for split, size in share_out(sum(images.values()), config["fractions"], owed={}).items():
        if images[split] != size:
            yield (
                f"split {split!r} should have {size:,} images and has {images[split]:,}, because "
                "groups (group_by) stay whole"
            )


def _warn_of_sources(sources: Mapping[str, int]) -> Iterator[str]:
    """Names the sources that contribute no image."""
    for name, images in sources.items():
        if not images:
            yield f"no image of the source {name!r} is written"


def _warn_of_image_ids(inputs: InputCounts, *, config: Mapping[str, Any]) -> Iterator[str]:
    """Warns of splits in which several images have one id, unless the config numbers them."""
    dropped = config.get("features", {}).get("drop", ())
    key = "annotation/image_id" if config.get("example_per") == "annotation" else _SOURCE_ID
    if config.get("source_id") == "number" or {key, _SOURCE_ID} <= {*dropped}:
        return
    for split, (image_id, keys) in inputs.samples.repeated_ids().items():
        names = " and ".join(map(repr, keys))
        yield (
            f"images of split {split!r} have the same id, such as {image_id!r} of {names}: ids "
            f"count within one annotation file, so {_SOURCE_ID} does not identify an image; "
            "source_id: number (--source-id number) gives each image its own"
        )


def warn_of_void_maps(
    statistics: Mapping[str, Statistics], *, classes: Collection[str]
) -> Iterator[str]:
    """Names the splits whose maps show no class, as in test sets without published maps."""
    for name in find_void_maps(statistics, classes=classes):
        yield f"no map of split {name!r} shows a class: their pixels are {VOID_PIXELS}"


def _warn_of_unannotated(splits: Mapping[str, SplitOutcome]) -> Iterator[str]:
    """Warns of splits of a dataset of objects in which most images have no annotations."""
    for name, split in splits.items():
        if 2 * split.unannotated > split.images:
            yield (
                f"more than half of the images of split {name!r} have no annotations; if they "
                "are not negatives, check the annotations' names, or leave these images out: "
                "--unannotated drop"
            )


# Notes for the summary: facts that are no reason for a warning.

# A note names splits whose share of the images differs from their fraction by this much.
_NOTABLE_SHARE = 0.02


def make_notes(
    inputs: InputCounts,
    *,
    dataset: DatasetSettings,
    label_map: LabelMap,
    statistics: Mapping[str, Statistics] | None = None,
) -> tuple[str, ...]:
    """Returns notes for the summary that are no reason for a warning, one line each.

    Args:
        inputs: What was counted before the images were read.
        dataset: What the config says about the dataset.
        label_map: The labels.
        statistics: `{split: what is in it}`; None before anything is written.
    """
    return (
        *_describe_left_out(inputs, dataset=dataset),
        *_describe_in_no_split(inputs),
        *_describe_fractions(inputs, config=dataset.config),
        *_describe_empty_shards(inputs, dataset=dataset),
        *(_describe_numbers(label_map) if dataset.classifies else ()),
        *_describe_untrained(statistics or {}, limit=dataset.config.get("limit")),
    )


def _describe_empty_shards(inputs: InputCounts, *, dataset: DatasetSettings) -> Iterator[str]:
    """Says that a split has fewer images than shards."""
    wanted = dataset.config.get("output", {}).get("num_shards") or 0
    if dataset.config.get("limit") is not None or dataset.config.get("example_per") == "annotation":
        return
    for name in dataset.splits:
        shards = wanted if isinstance(wanted, int) else wanted.get(name, 0)
        images = inputs.splits.get(name, SplitOutcome()).images
        if images < shards:
            has = "has 1 image" if images == 1 else f"has {images:,} images"
            yield f"output.num_shards: {name} {has} for {shards:,} shards, so some are empty"


def _describe_numbers(label_map: LabelMap) -> Iterator[str]:
    """Says that classes named by numbers have other labels than the order of these numbers."""
    names = sorted(label_map.ids, key=label_map.ids.__getitem__)
    if not all(name.isascii() and name.isdigit() for name in names):
        return
    moved = [
        name for name, other in zip(names, sorted(names, key=int), strict=True) if name != other
    ]
    if moved and not any(label_map.source_ids.values()):
        yield (
            "the classes are numbers, and are labelled in the order of their names as texts: "
            f"{moved[0]} has the label {label_map.ids[moved[0]]}; names of one length (01, 02, 10) "
            "or a file of classes order them"
        )


def _describe_untrained(
    statistics: Mapping[str, Statistics], *, limit: int | None
) -> Iterator[str]:
    """Says which classes of the other splits the split `train` lacks."""
    # A sample does not show what the whole dataset has.
    if "train" not in statistics or limit is not None:
        return
    known = statistics["train"].images_by_class
    for name, split in statistics.items():
        missing = sorted(set(split.images_by_class) - set(known))
        if missing and known:
            number = "1 class is" if len(missing) == 1 else f"{len(missing):,} classes are"
            yield f"{number} in {name} and not in train: {list_classes(missing)}"


def _describe_fractions(inputs: InputCounts, *, config: Mapping[str, Any]) -> Iterator[str]:
    """Compares the shares of the images with the fractions that were asked for."""
    fractions: Mapping[str, float] = config.get("fractions") or {}
    # A sample does not show the sizes of the whole dataset.
    if not fractions or any(config.get(key) for key in ("exact", "stratify", "limit")):
        return
    images = {split: inputs.splits.get(split, SplitOutcome()).images for split in fractions}
    shares = {split: count / max(1, sum(images.values())) for split, count in images.items()}
    if any(abs(shares[split] - fractions[split]) >= _NOTABLE_SHARE for split in fractions):
        found = ", ".join(f"{split} {shares[split]:.0%}" for split in fractions)
        wanted = ", ".join(f"{split} {fractions[split]:.0%}" for split in fractions)
        yield (
            f"fractions are approximate: {found} of the images, instead of {wanted}; a hash of its "
            "name puts each image into a split, so that it never changes its split when others are "
            "added; --exact makes the fractions exact"
        )


def _describe_left_out(inputs: InputCounts, *, dataset: DatasetSettings) -> tuple[str, ...]:
    """Says which images are left out because nothing names them, one line per split."""
    lines = []
    for name in (*dataset.splits, NO_SPLIT):
        split = inputs.splits.get(name, SplitOutcome())
        count = split.excluded.get(Exclusion.UNANNOTATED.value, 0)
        if not count:
            continue
        examples = escape(", ".join(inputs.samples.excluded(Exclusion.UNANNOTATED, split=name)))
        line = (
            f"{count:,} of {split.listed_images:,} images of {name or 'no split'} are named by no "
            f"row or annotation file and left out, such as {examples}"
        )
        if dataset.file_per_image:
            line += (
                "; they may have no annotations yet, or no objects (some tools then save no file)"
            )
        if dataset.config.get("unannotated") == "auto":
            splitting = "" if name else ", with --split or --fractions,"
            line += f"; --unannotated keep{splitting} writes them as negatives"
        lines.append(line)
    return tuple(lines)


def _describe_in_no_split(inputs: InputCounts) -> Iterator[str]:
    """Says how many images are left out because no split names them."""
    count = inputs.excluded(Exclusion.IN_NO_SPLIT)
    if count:
        examples = escape(", ".join(inputs.samples.excluded(Exclusion.IN_NO_SPLIT)))
        belong = "image belongs" if count == 1 else "images belong"
        are = "is" if count == 1 else "are"
        yield f"{count:,} {belong} to no split and {are} left out, such as {examples}"

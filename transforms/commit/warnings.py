"""Warnings about results that may not be intended."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from shardbeam.transforms.commit.allowance import describe_tolerance
from shardbeam.transforms.commit.gate import (
    VOID_PIXELS,
    RunCounts,
    count_sources,
    describe_duplicates,
    find_void_maps,
)
from shardbeam.transforms.core.box_formats import BoxFormat, BoxReading
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.reasons import Correction, Exclusion
from shardbeam.transforms.core.sharding import share_out
from shardbeam.transforms.core.text import counted, escape
from shardbeam.transforms.dataset.collectors.statistics import first_corrections
from shardbeam.transforms.dataset.rejects import name_image
from shardbeam.transforms.examples.encode.maps import CLASS_PIXELS, IGNORED_PIXELS
from shardbeam.transforms.examples.geometry.box_readings import (
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


def find_warnings(run: RunCounts) -> tuple[str, ...]:
    """Returns warnings about results that may not be intended, one line each."""
    return (*run.dataset.warnings, *(line for find in _WARNINGS for line in find(run)))


def _warn_of_refusal(run: RunCounts) -> Iterator[str]:
    """Warns of splits with too many rejects; once shards are written, the gate refuses them."""
    if run.statistics:
        return
    over = [*run.tolerance.excess(run.splits).values()]
    if over:
        over[-1] += f"; {describe_tolerance(run.splits)}"
    yield from (f"a build would be refused: {split}" for split in over)


def _warn_of_allowed(run: RunCounts) -> Iterator[str]:
    """Names each reject of the splits that only the default's allowance lets pass."""
    allowed = run.tolerance.allowed(run.splits)
    for file in run.rejects:
        if file.split in allowed:
            for reject in file.allowed:
                name = name_image(reject.source, reject.key)
                cause = escape(f"{name} ({reject.reason.value}: {reject.detail})")
                yield f"rejected from split {file.split!r}: {cause}"


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


def _warn_of_sizes(run: RunCounts) -> Iterator[str]:
    """Warns of images that are annotated in another size, unless the config allows it."""
    corrected = first_corrections(run.corrected)
    for correction, text in _SIZE_WARNINGS.items():
        count = sum(split.corrections.get(correction.value, 0) for split in run.splits.values())
        lines = (line for line in corrected if line.what == correction.value)
        examples = ", ".join(
            f"{name_image(line.source, line.key)} (as {'x'.join(map(str, line.before))})"
            for line in itertools.islice(lines, _NAMED)
        )
        if count and run.dataset.config["image"]["annotated_size"] != "ignore":
            images = counted(count, "image is", "images are")
            yield f"{images} annotated in another size, such as {escape(examples)}, {text}"


def _warn_of_exclude(run: RunCounts) -> Iterator[str]:
    """Warns if the file in `exclude` names images that were not found."""
    code, named = Exclusion.EXCLUDED_BY_FILE.value, run.dataset.excluded
    found = sum(split.excluded.get(code, 0) for split in run.splits.values())
    if found < named:
        yield f"of the {named:,} images that the file in `exclude` names, {found:,} were found"


_CLASSLESS = {
    Correction.OBJECT_OF_UNKNOWN_CATEGORY_DROPPED: ("object has", "objects have"),
    Correction.LABEL_OF_UNKNOWN_CATEGORY_DROPPED: ("label of images has", "labels of images have"),
}


def _warn_of_classless(run: RunCounts) -> Iterator[str]:
    """Names images of which objects or labels are left out because they have no known class."""
    corrected = first_corrections(run.corrected)
    for correction, units in _CLASSLESS.items():
        count = sum(split.corrections.get(correction.value, 0) for split in run.splits.values())
        if not count:
            continue
        images = dict.fromkeys(
            name_image(line.source, line.key) for line in corrected if line.what == correction.value
        )
        examples = escape(", ".join(itertools.islice(images, _NAMED)))
        where = f", such as in {examples}" if examples else ""
        yield (
            f"{counted(count, *units)} no class that the annotations declare, and "
            f"{'is' if count == 1 else 'are'} left out, while others of the dataset keep theirs"
            f"{where}; the corrections say what each has instead"
        )


def _warn_of_classes(run: RunCounts) -> Iterator[str]:
    """Warns of classes and class ids that are probably a mistake."""
    dataset, label_map, statistics = run.dataset, run.label_map, run.statistics
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
        sum(getattr(split, name) for split in statistics.values()) for name in ("objects", "crowds")
    )
    if objects and crowds == objects:
        yield (
            f"all {objects:,} objects are crowds (iscrowd), which many trainers skip; if they are "
            "single objects, set iscrowd to 0 in the source"
        )
    found = {*names}
    if statistics:
        found = {name for split in statistics.values() for name in split.images_by_class}
        found |= {label_map.names.get(name, name) for name in dataset.absent}
    lost = _find_lost_classes(run, found=found)
    absent = [name for name in names if name not in found and name not in lost]
    if absent:
        yield f"{len(absent):,} of {len(names):,} {NEVER_OCCUR}: {list_classes(absent)}"
    if lost:
        yield (
            f"{counted(len(lost), 'class is', 'classes are')} in no Example, because no object of "
            "the source has a box: "
            f"{list_classes([*lost.values()])}; draw boxes for them, or leave them out with "
            "labels.exclude"
        )


def _find_lost_classes(run: RunCounts, *, found: Collection[str]) -> dict[str, str]:
    """Finds the classes that the dataset lacks because their objects have no box.

    Returns:
        `{written name: the class with its shapes}`, without classes that the config leaves out.
    """
    merge = run.dataset.config.get("labels", {}).get("merge", {})
    merged = {old: new for new, olds in merge.items() for old in olds}
    lost: dict[str, str] = {}
    for name, shapes in sorted(run.inputs.classes.lost.items()):
        written = merged.get(name, name)
        if written not in found and name not in run.label_map.left_out:
            lost.setdefault(written, f"{name} ({', '.join(sorted(shapes))})")
    return lost


def _warn_of_units(run: RunCounts) -> Iterator[str]:
    """Warns of sources with one or two boxes that are read as pixels and may be fractions.

    `check_units` refuses sources with more of them.
    """
    for name, seen in sorted(run.inputs.samples.sources.items()):
        if seen.fractions:
            boxes = "the only box lies" if seen.fractions == 1 else "the only two boxes lie"
            where = f"source {name!r}: " if len(run.dataset.sources) > 1 else ""
            yield (
                f"{where}{boxes} within 0 to 1, and may be a fraction of the image's "
                "sides; boxes are read as pixels here: box_units: fraction changes that for COCO "
                "and LVIS, and tables may have fractions"
            )


def _warn_of_readings(run: RunCounts) -> Iterator[str]:
    """Warns of sources whose boxes leave their images, and names the readings that fit."""
    for source, total in _sum_readings(run):
        reading = run.dataset.box_readings.get(source)
        if reading is None:
            continue
        fitting = [
            other
            for other in reading.fitting
            if _fits(total[other_reading(reading.format, other)], of=total[TRIED])
        ]
        boxes = f"of the {total[BOXES]:,} boxes"
        if len(run.dataset.sources) > 1:
            boxes += f" of source {source!r}"
        if _are_many(total[OUTSIDE], of=total[BOXES], share=_OUTSIDE_SHARE):
            what = f"{total[OUTSIDE]:,} {boxes} leave their image by more than a pixel"
        elif fitting and _are_many(total[EXCHANGED], of=total[BOXES], share=_EXCHANGED_SHARE):
            what = f"the corners of {total[EXCHANGED]:,} {boxes} were exchanged"
        else:
            continue
        yield f"{what}; {_describe_readings(total, fitting=fitting, reading=reading)}"


def _warn_of_ignored_pixels(run: RunCounts) -> Iterator[str]:
    """Warns of sources in whose maps 255 is most of what is labelled, if nothing says its meaning.

    The first maps of a source are checked before the run.
    """
    for source, total in _sum_readings(run):
        ignored, labelled = total[IGNORED_PIXELS], total[IGNORED_PIXELS] + total[CLASS_PIXELS]
        # Maps without classes have their own warning.
        if total[CLASS_PIXELS] and 2 * ignored > labelled:
            where = f" of source {source!r}" if len(run.dataset.sources) > 1 else ""
            yield (
                f"{100 * ignored // labelled}% of what the maps{where} label is 255, which is "
                "written as pixels to ignore; if 255 is a class, say which, with all other values, "
                "such as mask_values: {1: 1, 255: 2}; if not, {1: 1, 255: ignore}"
            )


def _sum_readings(run: RunCounts) -> list[tuple[str, Counter[str]]]:
    """Sums `ShardResult.readings` by source, in order of the sources' names."""
    totals: dict[str, Counter[str]] = {}
    for shard in run.shards:
        for source, counts in shard.readings.items():
            totals.setdefault(source, Counter()).update(counts)
    return sorted(totals.items(), key=lambda each: each[0])


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


def _warn_of_groups(run: RunCounts) -> Iterator[str]:
    """Warns of splits whose exact size is not met because groups stay whole."""
    config = run.dataset.config
    # A sample does not show the sizes of the splits.
    if not (config.get("exact") and config.get("group_by")) or config.get("limit"):
        return
    images = {split: run.joined(split).images for split in config["fractions"]}
    for split, size in share_out(sum(images.values()), config["fractions"], owed={}).items():
        if images[split] != size:
            yield (
                f"split {split!r} should have {size:,} images and has {images[split]:,}, because "
                "groups (group_by) stay whole"
            )


def _warn_of_sources(run: RunCounts) -> Iterator[str]:
    """Names the sources that contribute no image."""
    for name, images in count_sources(run).items():
        if not images:
            yield f"no image of the source {name!r} is written"


def _warn_of_image_ids(run: RunCounts) -> Iterator[str]:
    """Warns of splits in which several images have one id, unless the config numbers them."""
    config = run.dataset.config
    dropped = config.get("features", {}).get("drop", ())
    key = "annotation/image_id" if config.get("example_per") == "annotation" else _SOURCE_ID
    if config.get("source_id") == "number" or {key, _SOURCE_ID} <= {*dropped}:
        return
    for split, (image_id, keys) in run.inputs.samples.repeated_ids().items():
        names = " and ".join(map(repr, keys))
        yield (
            f"images of split {split!r} have the same id, such as {image_id!r} of {names}: ids "
            f"count within one annotation file, so {_SOURCE_ID} does not identify an image; "
            "source_id: number (--source-id number) gives each image its own"
        )


def _warn_of_void_maps(run: RunCounts) -> Iterator[str]:
    """Names the splits whose maps show no class, as in test sets without published maps."""
    for name in find_void_maps(run):
        yield f"no map of split {name!r} shows a class: their pixels are {VOID_PIXELS}"


def _warn_of_unannotated(run: RunCounts) -> Iterator[str]:
    """Warns of splits of a dataset of objects in which most images have no annotations."""
    for name, split in run.splits.items():
        if run.dataset.objects and 2 * split.unannotated > split.images:
            yield (
                f"more than half of the images of split {name!r} have no annotations; if they "
                "are not negatives, check the annotations' names, or leave these images out: "
                "--unannotated drop"
            )


def _warn_of_duplicates(run: RunCounts) -> Iterator[str]:
    if run.duplicates is not None:
        yield from describe_duplicates(run.duplicates, splits=run.splits).values()


def _warn_of_linked_folders(run: RunCounts) -> Iterator[str]:
    if text := run.inputs.describe_linked_folders():
        yield text


_WARNINGS: Sequence[Callable[[RunCounts], Iterator[str]]] = (
    _warn_of_refusal,
    _warn_of_allowed,
    _warn_of_classless,
    _warn_of_classes,
    _warn_of_void_maps,
    _warn_of_groups,
    _warn_of_units,
    _warn_of_readings,
    _warn_of_ignored_pixels,
    _warn_of_unannotated,
    _warn_of_sources,
    _warn_of_image_ids,
    _warn_of_duplicates,
    _warn_of_exclude,
    _warn_of_sizes,
    _warn_of_linked_folders,
)

"""Judges a run: whether images and annotations belong together, and whether the counts add up.

The steps pass their counts on as data, because Beam's counters count retries twice.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from shardbeam.configs.schema import DuplicatesConfig
from shardbeam.transforms.core.edges import (
    ANNOTATION_FILES,
    ENTRIES,
    IMAGES,
    LOST_ELEMENTS,
    MASKS,
    MOVES,
    REJECTS,
    REPEAT,
    ROOTS,
    SENT_BY_JOIN,
    SENT_BY_LISTING,
    SHARDS,
    TO_CUT_SPLITS,
    TO_SAMPLE,
    Edges,
    Tally,
    encode_element,
    lost_error,
)
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.kinds import BoxFormat
from shardbeam.transforms.core.labels import NAMED_CLASSES, LabelMap, list_classes
from shardbeam.transforms.core.reasons import DROPPED_OBJECTS, Correction, Exclusion, Reason
from shardbeam.transforms.core.records import Corrected
from shardbeam.transforms.core.sharding import NO_SPLIT, share_out
from shardbeam.transforms.core.text import escape, show_name
from shardbeam.transforms.dataset.census import Census, SourceCensus
from shardbeam.transforms.dataset.corrections import first_corrections
from shardbeam.transforms.dataset.files import Origin, ShardResult
from shardbeam.transforms.dataset.metadata import DatasetSettings
from shardbeam.transforms.dataset.outcome import Outcome, Resumed, Reuse, SplitOutcome, Status
from shardbeam.transforms.dataset.rejects import (
    RejectsFile,
    describe_split_rejects,
    first_rejects,
    name_image,
    rejects_path,
)
from shardbeam.transforms.dataset.statistics import CountedStatistics, Statistics
from shardbeam.transforms.duplicates.duplicates import Duplicates
from shardbeam.transforms.examples.box_readings import (
    BOXES,
    EXCHANGED,
    OUTSIDE,
    TRIED,
    TURNED,
    other_reading,
)
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.box_format import BoxReading
from shardbeam.transforms.formats.join.join import JoinSettings
from shardbeam.transforms.formats.join.sources import (
    FilePart,
    Root,
    Source,
    list_annotation_files,
    list_roots,
)
from shardbeam.transforms.formats.names import FILE_FOLDERS, foreign_name, loosened
from shardbeam.transforms.formats.split_folders import is_split_name

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
_UNITS_FIX = (
    "Then set box_units: fraction (--box-units fraction), which reads them as fractions of the "
    "images' sides"
)
_UNITS_ELSEWHERE = (
    "This format has boxes in pixels only; a table may have fractions: write the boxes as CSV with "
    "the columns image, label, xmin, ymin, xmax and ymax, and build that "
    "(docs/reference/formats/csv.md)"
)

_SOURCE_ID = "image/source_id"
# Images that a warning names as examples.
_NAMED = 3
# A note names splits whose share of the images differs from their fraction by this much.
_NOTABLE_SHARE = 0.02

# {`match`: what it joins by}
_MATCHES = {
    "suffix": "their last folder and name, without case and extension",
    "name": "their name alone, without case and extension",
}


def check_listing(census: Census, *, sources: Sequence[Source]) -> Census:
    """Refuses a listing if the runner lost or doubled a part of it.

    Raises:
        InputError: The ends of an edge differ; the message names each such edge.
    """
    return _check_edges(census, roots=list_roots(sources), files=(), to=(), but=SENT_BY_LISTING)


def check_edges(census: Census, *, sources: Sequence[Source], settings: JoinSettings) -> Census:
    """Refuses a join if the runner lost or doubled elements on the way.

    The roots and annotation files are known from the plan, so that a bundle that is lost together
    with its census is noticed.

    Returns:
        The census, which now counts the roots and files that the plan sends.

    Raises:
        InputError: The ends of an edge differ; the message names each such edge.
    """
    to = [TO_CUT_SPLITS] * settings.splits.exact + [TO_SAMPLE] * (settings.limit is not None)
    return _check_edges(
        census,
        roots=list_roots(sources),
        files=list_annotation_files(sources),
        to=to,
        but=SENT_BY_JOIN,
    )


def _check_edges(
    census: Census,
    *,
    roots: Iterable[Root],
    files: Iterable[FilePart],
    to: Iterable[str],
    but: Collection[str],
) -> Census:
    edges = Edges()
    edges.add(census.edges)
    for root in roots:
        edges.send(ROOTS, encode_element(root))
    for file in files:
        edges.send(ANNOTATION_FILES, encode_element(file))
    for purpose in to:
        edges.repeat((IMAGES, MASKS, ENTRIES), purpose)
    if lost := edges.lost(but=but):
        raise lost_error(lost)
    return msgspec.structs.replace(census, edges=edges)


def find_lost(
    census: Census,
    *,
    splits: Iterable[str],
    shards: Sequence[ShardResult],
    rejects: Sequence[RejectsFile],
    statistics: Iterable[CountedStatistics],
    duplicates: Duplicates | None,
    moves: tuple[int, int] = (0, 0),
) -> list[str]:
    """Describes each edge of the whole graph on which a runner has lost or doubled elements.

    Args:
        census: The census that `check_edges` returned.
        splits: The splits' names.
        shards: All shards.
        rejects: All files of rejects.
        statistics: The statistics of each split.
        duplicates: The duplicates, if they were looked for.
        moves: How many moves the gate planned, and how many were made.
    """
    edges = Edges(sent={MOVES: Tally(moves[0])}, received={MOVES: Tally(moves[1])})
    for part in (census, *shards, *rejects, *statistics, *([duplicates] if duplicates else ())):
        edges.add(part.edges)
    planned = {shard.split: shard.num_shards for shard in shards}
    for split in splits:
        # Each split has at least one shard, even an empty split.
        for index in range(planned.get(split, 1)):
            edges.send(SHARDS, encode_element((split, index)))
    for shard in shards:
        edges.receive(SHARDS, encode_element((shard.split, shard.shard_index)))
    lost = edges.lost()
    numbers: Counter[str] = Counter()
    for file in rejects:
        numbers[file.split] += sum(file.counts.values())
    # The number of a split's rejects decides the names of their files.
    for file in rejects:
        if rejects_path(file.first[0], counts=numbers) != file.file.path:
            lost.append(f"{REJECTS}: the name {file.file.path} does not fit their number")
    return lost


def check_join(census: Census, *, sources: Iterable[Source]) -> None:
    """Refuses a join in which no annotation of a source names a listed image: its root is wrong.

    Raises:
        InputError: No annotation matches; the message names a listed key, an annotated key, and
            the likely fix.
    """
    for source in sources:
        seen = census.sources.get(source.name, SourceCensus())
        if seen.referenced and not seen.matched:
            malformed = Reason.ANNOTATION_MALFORMED
            rejects = [
                reject
                for first in census.first_rejects.values()
                for reject in first
                if reject.reason is malformed and reject.source == source.name
            ]
            number = sum(each.rejected.get(malformed.value, 0) for each in census.splits.values())
            if rejects and number >= seen.referenced:
                raise InputError(
                    uri=", ".join(source.format.roots()),
                    problem=f"none of the {seen.referenced} annotations can be used, such as "
                    f"{show_name(rejects[0].key)}: {rejects[0].detail}",
                )
            listed = show_name(seen.listed_key) if seen.listed_key else "no image"
            referenced = show_name(seen.referenced_key) if seen.referenced_key else "no file"
            if listed == referenced:
                listed = "the same name, but this format joins by the name without the extension"
            archives = "" if seen.listed_key else census.describe_archives()
            fix = archives or _suggest_fix(seen, source_format=source.format)
            raise InputError(
                uri=", ".join(source.format.roots()),
                problem=(
                    f"none of the {seen.referenced} annotated images is listed here: the "
                    f"annotations name {referenced}, the listing holds {listed}; {fix}"
                ),
            )


def check_units(census: Census, *, sources: Iterable[Source]) -> None:
    """Refuses a source whose boxes should be pixels and all lie within 0 to 1.

    Raises:
        InputError: There are at least three such boxes; the message names the likely fix.
    """
    for source in sources:
        seen = census.sources.get(source.name, SourceCensus())
        if seen.fractions < _FEW_BOXES:
            continue
        fix = _UNITS_FIX if hasattr(source.format, "box_units") else _UNITS_ELSEWHERE
        given = source.format.annotation_files()
        if source.format.lists_annotations or not given:
            given = source.format.roots()
        raise InputError(
            uri=", ".join(given),
            problem=f"all {seen.fractions:,} boxes lie within 0 to 1, and are read as pixels: are "
            f"these fractions? {fix}",
        )


def check_image_ids(census: Census, *, sources: Iterable[Source]) -> None:
    """Refuses a source none of whose images has an id that is a number.

    Raises:
        InputError: `annotation/image_id` could not be written for any image of the source.
    """
    for source in sources:
        seen = census.sources.get(source.name, SourceCensus())
        if seen.unnumbered and not seen.numbered:
            raise InputError(
                uri=", ".join(source.format.roots()) or source.name,
                problem=f"none of its images with objects ({seen.unnumbered:,}) has an id that is "
                "a number, which example_per: annotation writes as annotation/image_id; set "
                "source_id: number (--source-id number), or leave the key out "
                "(features.drop: [annotation/image_id])",
            )


def check_masks(census: Census) -> None:
    """Refuses a run that asks for masks if no object of the dataset can have one.

    Raises:
        InputError: No object has a segmentation, or none of the segmentations can be drawn.
    """
    masks = census.masks
    if masks.usable or not masks.objects:
        return
    problem = f"none of the {masks.objects:,} objects has polygons, run lengths or a mask"
    if masks.given:
        problem = (
            f"{masks.given:,} of {masks.objects:,} objects have a segmentation, and none gives a "
            f"mask, such as {masks.first} (docs/reference/masks.md says what can be drawn)"
        )
    raise InputError(
        uri="config", place="masks", problem=f"{problem}; to go without masks: --set masks=none"
    )


def _suggest_fix(seen: SourceCensus, *, source_format: Format) -> str:
    """Suggests the change with which most of the sampled names would match."""
    roots, root_key = source_format.roots(), source_format.ROOTS[0]
    by_name = {loosened(key, "name"): key for key in sorted(seen.listed_sample)}
    fixes: Counter[str] = Counter()
    for name in sorted(seen.referenced_sample):
        listed = by_name.get(loosened(name, "name"), "")
        if listed.endswith(f"/{name}"):
            fixes[
                f"move the root down: add /{listed.removesuffix(f'/{name}')} to `{root_key}`"
            ] += 1
        folders = name.removesuffix(f"/{listed}")
        if (
            listed
            and folders != name
            and any(root.rstrip("/").endswith(f"/{folders}") for root in roots)
        ):
            fixes[f"move the root up: remove /{folders} from `{root_key}`"] += 1
    if not fixes:
        names = (*seen.referenced_sample, *seen.listed_sample)
        # Without folders, both join the same.
        for match in ("suffix", "name") if any("/" in name for name in names) else ("name",):
            listed_ends = {loosened(key, match) for key in seen.listed_sample}
            count = sum(loosened(name, match) in listed_ends for name in seen.referenced_sample)
            fixes[match] = count
    fix, count = fixes.most_common(1)[0]
    if not count:
        return foreign_name(seen.referenced_key) or (
            "no names agree, even without folder, case and extension: check that the images and "
            "the annotations belong together"
        )
    if fix in ("suffix", "name"):
        fix = (
            f"join them by {_MATCHES[fix]}: --match {fix} (`match: {fix}`)"
            if hasattr(source_format, "match")
            else f"rename the images or fix the annotations: they agree in {_MATCHES[fix]}"
        )
    return f"{fix}; then {count} of {len(seen.referenced_sample)} names that were tried match"


def count_splits(
    *,
    splits: Sequence[str],
    census: Census,
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

    for split, listed in _listed_by_split(splits, census=census).items():
        add(split, SplitOutcome(listed=listed))
    for split, joined in census.splits.items():
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


def _listed_by_split(splits: Sequence[str], *, census: Census) -> dict[str, int]:
    """Counts the inputs of each split, by the listing, or by the join if the listing has none."""
    files = census.listing.files
    if set(files) - {NO_SPLIT}:
        return files
    counts = {split: census.splits.get(split, SplitOutcome()).listed for split in splits}
    if files:
        # Files listed but never joined show up here.
        if others := files[NO_SPLIT] - sum(counts.values()):
            counts[NO_SPLIT] = others
    elif NO_SPLIT in census.splits:
        # Rows of a table without images.
        counts[NO_SPLIT] = census.splits[NO_SPLIT].listed
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


def judge(
    splits: Mapping[str, SplitOutcome],
    *,
    max_ratio: float,
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
        max_ratio: The greatest share of a split's inputs (`SplitOutcome.inputs`) that may be
            rejected.
        rejects_root: Where the rejects files are.
        rejects: These files.
        objects: Whether the dataset must hold objects.
        void: Why no map of the dataset shows a class, if that is so.
        unmet: The expectations of the config that are not met.
        lost_elements: The edges of the graph on which the runner lost or doubled elements.

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
    over = _describe_rejects(splits, max_ratio=max_ratio)
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
        lines += _describe_worst(splits, max_ratio=max_ratio, rejects=rejects)
    if over and not (lost_elements or lost or empty):
        lines.append(_describe_tolerance(splits))
    return Outcome(
        status=status,
        splits=splits,
        message="\n".join(lines),
        rejects=rejects_root if any(split.rejected for split in splits.values()) else "",
    )


def _describe_rejects(splits: Mapping[str, SplitOutcome], *, max_ratio: float) -> list[str]:
    """Describes the splits with too many rejects."""
    return [
        f"split {name!r}: {sum(split.rejected.values())} of {split.inputs} inputs rejected "
        f"({split.reject_ratio:.2%}); rejects.max_ratio allows {max_ratio:.2%}"
        for name, split in splits.items()
        if name != NO_SPLIT and split.reject_ratio > max_ratio
    ]


def _describe_tolerance(splits: Mapping[str, SplitOutcome]) -> str:
    """Describes what to do about the rejects, with the smallest ratio that allows them."""
    return f"fix them, or let them pass: --set rejects.max_ratio={tolerated_ratio(splits):g}"


def tolerated_ratio(splits: Mapping[str, SplitOutcome]) -> float:
    """Returns the smallest `rejects.max_ratio` that lets all rejects pass, to a thousandth."""
    ratios = (split.reject_ratio for name, split in splits.items() if name != NO_SPLIT)
    return math.ceil(1000 * max(ratios)) / 1000


def _ending(status: Status) -> str:
    # For a refused build, the summary's heading says this; an error has no heading.
    return ", nothing was committed" if status is Status.FAILED else ""


def _describe_worst(
    splits: Mapping[str, SplitOutcome], *, max_ratio: float, rejects: Sequence[RejectsFile]
) -> Iterator[str]:
    """Describes the rejects that belong to no split, or to a split that may not be committed."""
    for name, split in splits.items():
        is_bad = name == NO_SPLIT or split.reject_ratio > max_ratio or not split.examples
        if is_bad and any(split.rejected.values()):
            first = (one for file in rejects if file.split == name for one in file.first)
            yield describe_split_rejects(name, split.rejected, first=first_rejects(*first))


def judge_duplicates(
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
        for key, text in describe_duplicates(duplicates).items()
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


def describe_duplicates(duplicates: Duplicates) -> dict[str, str]:
    """Describes leaks and contradictions, if there are any: `{key of the config: text}`."""
    counts = duplicates.counts
    texts = {}
    if counts.leaks:
        are = "picture is" if counts.leaks == 1 else "pictures are"
        texts["leaks"] = f"{counts.leaks:,} {are} in several splits"
    for key, files, what in (
        ("contradictions", "equal files", "labels"),
        ("near_contradictions", "nearly equal pictures", "classes"),
    ):
        if count := getattr(counts, key):
            groups, have = ("group", "has") if count == 1 else ("groups", "have")
            texts[key] = f"{count:,} {groups} of {files} {have} different {what}"
    return {
        key: f"{text}, such as {'; '.join(getattr(duplicates, key))}" for key, text in texts.items()
    }


def find_warnings(
    census: Census,
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
        census: What was counted before the images were read.
        splits: The counts of each split.
        label_map: The labels.
        dataset: What the config says about the dataset.
        statistics: `{split: what is in it}`; None before anything is written.
        duplicates: The duplicates, if they were looked for.
        corrected: The first corrections of each kind.
        readings: `{source: counts of its boxes}` of each shard (`box_readings`).
    """
    # Once shards are written, the gate says this.
    over = (
        _describe_rejects(splits, max_ratio=dataset.max_reject_ratio) if statistics is None else []
    )
    if over:
        over[-1] += f"; {_describe_tolerance(splits)}"
    return (
        *dataset.warnings,
        *(f"a build would be refused: {split}" for split in over),
        *_warn_of_classes(census, label_map=label_map, dataset=dataset, statistics=statistics),
        *warn_of_void_maps(statistics or {}, classes=label_map.ids),
        *_warn_of_groups(census, config=dataset.config),
        *_warn_of_units(census, dataset=dataset),
        *_warn_of_readings(readings, dataset=dataset),
        *(_warn_of_unannotated(splits) if dataset.objects else ()),
        *_warn_of_sources(count_sources(census, dataset=dataset)),
        *_warn_of_image_ids(census, config=dataset.config),
        *(describe_duplicates(duplicates).values() if duplicates else ()),
        *_warn_of_exclude(splits, named=dataset.excluded),
        *_warn_of_sizes(splits, corrected=first_corrections(corrected), config=dataset.config),
        *filter(None, [census.describe_linked_folders()]),
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


def make_notes(
    census: Census,
    *,
    dataset: DatasetSettings,
    label_map: LabelMap,
    statistics: Mapping[str, Statistics] | None = None,
) -> tuple[str, ...]:
    """Returns notes for the summary that are no reason for a warning, one line each.

    Args:
        census: What was counted before the images were read.
        dataset: What the config says about the dataset.
        label_map: The labels.
        statistics: `{split: what is in it}`; None before anything is written.
    """
    return (
        *_describe_left_out(census, dataset=dataset),
        *_describe_in_no_split(census),
        *_describe_fractions(census, config=dataset.config),
        *_describe_empty_shards(census, dataset=dataset),
        *(_describe_numbers(label_map) if dataset.classifies else ()),
        *_describe_untrained(statistics or {}, limit=dataset.config.get("limit")),
    )


def _describe_empty_shards(census: Census, *, dataset: DatasetSettings) -> Iterator[str]:
    """Says that a split has fewer images than shards."""
    wanted = dataset.config.get("output", {}).get("num_shards") or 0
    if dataset.config.get("limit") is not None or dataset.config.get("example_per") == "annotation":
        return
    for name in dataset.splits:
        shards = wanted if isinstance(wanted, int) else wanted.get(name, 0)
        images = census.splits.get(name, SplitOutcome()).images
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


def _describe_fractions(census: Census, *, config: Mapping[str, Any]) -> Iterator[str]:
    """Compares the shares of the images with the fractions that were asked for."""
    fractions: Mapping[str, float] = config.get("fractions") or {}
    # A sample does not show the sizes of the whole dataset.
    if not fractions or any(config.get(key) for key in ("exact", "stratify", "limit")):
        return
    images = {split: census.splits.get(split, SplitOutcome()).images for split in fractions}
    shares = {split: count / max(1, sum(images.values())) for split, count in images.items()}
    if any(abs(shares[split] - fractions[split]) >= _NOTABLE_SHARE for split in fractions):
        found = ", ".join(f"{split} {shares[split]:.0%}" for split in fractions)
        wanted = ", ".join(f"{split} {fractions[split]:.0%}" for split in fractions)
        yield (
            f"fractions are approximate: {found} of the images, instead of {wanted}; a hash of its "
            "name puts each image into a split, so that it never changes its split when others are "
            "added; --exact makes the fractions exact"
        )


def _describe_left_out(census: Census, *, dataset: DatasetSettings) -> tuple[str, ...]:
    """Says which images are left out because nothing names them, one line per split."""
    lines = []
    for name in (*dataset.splits, NO_SPLIT):
        split = census.splits.get(name, SplitOutcome())
        count = split.excluded.get(Exclusion.UNANNOTATED.value, 0)
        if not count:
            continue
        examples = escape(", ".join(census.left_out[name]))
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


def _describe_in_no_split(census: Census) -> Iterator[str]:
    """Says how many images are left out because no split names them."""
    code = Exclusion.IN_NO_SPLIT.value
    count = sum(split.excluded.get(code, 0) for split in census.splits.values())
    if count:
        examples = escape(", ".join(census.in_no_split))
        belong = "image belongs" if count == 1 else "images belong"
        are = "is" if count == 1 else "are"
        yield f"{count:,} {belong} to no split and {are} left out, such as {examples}"


def _warn_of_exclude(splits: Mapping[str, SplitOutcome], *, named: int) -> Iterator[str]:
    """Warns if the file in `exclude` names images that were not found."""
    code = Exclusion.EXCLUDED_BY_FILE.value
    found = sum(split.excluded.get(code, 0) for split in splits.values())
    if found < named:
        yield f"of the {named:,} images that the file in `exclude` names, {found:,} were found"


def name_classes(label_map: LabelMap) -> dict[str, Any]:
    """Returns the fields of an `Outcome` that count and name the classes."""
    names = sorted(label_map.ids, key=label_map.ids.__getitem__)
    return {"num_classes": len(names), "classes": tuple(names[:NAMED_CLASSES])}


def _warn_of_classes(
    census: Census,
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
    lost = _find_lost_classes(census, found=found, label_map=label_map, labels=labels)
    absent = [name for name in names if name not in found and name not in lost]
    if absent:
        yield (
            f"{len(absent):,} of {len(names):,} declared classes never occur: "
            f"{list_classes(absent)}"
        )
    if lost:
        classes = "1 class is" if len(lost) == 1 else f"{len(lost):,} classes are"
        yield (
            f"{classes} in no Example, because no object of the source has a box: "
            f"{list_classes([*lost.values()])}; draw boxes for them, or leave them out with "
            "labels.exclude"
        )


def _find_lost_classes(
    census: Census, *, found: Collection[str], label_map: LabelMap, labels: Mapping[str, Any]
) -> dict[str, str]:
    """Finds the classes that the dataset lacks because their objects have no box.

    Returns:
        `{written name: the class with its shapes}`, without classes that the config leaves out.
    """
    if not census.lost:
        return {}
    merged = {old: new for new, olds in labels.get("merge", {}).items() for old in olds}
    lost: dict[str, str] = {}
    for name in sorted(census.lost):
        written = merged.get(name, name)
        if written not in found and name not in label_map.left_out:
            lost.setdefault(written, f"{name} ({', '.join(sorted(census.lost[name]))})")
    return lost


def _warn_of_units(census: Census, *, dataset: DatasetSettings) -> Iterator[str]:
    """Warns of sources with one or two boxes that are read as pixels and may be fractions.

    `check_units` refuses sources with more of them.
    """
    for name, seen in sorted(census.sources.items()):
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


def _warn_of_groups(census: Census, *, config: Mapping[str, Any]) -> Iterator[str]:
    """Warns of splits whose exact size is not met because groups stay whole."""
    # A sample does not show the sizes of the splits.
    if not (config.get("exact") and config.get("group_by")) or config.get("limit"):
        return
    images = {
        split: census.splits.get(split, SplitOutcome()).images for split in config["fractions"]
    }
    for split, size in share_out(sum(images.values()), config["fractions"], owed={}).items():
        if images[split] != size:
            yield (
                f"split {split!r} should have {size:,} images and has {images[split]:,}, because "
                "groups (group_by) stay whole"
            )


def count_sources(census: Census, *, dataset: DatasetSettings) -> dict[str, int]:
    """Counts the images that each source passes on, if a split has several sources."""
    if not any("/" in name for name in dataset.sources):
        return {}
    return {name: census.sources.get(name, SourceCensus()).images for name in dataset.sources}


def _warn_of_sources(sources: Mapping[str, int]) -> Iterator[str]:
    """Names the sources that contribute no image."""
    for name, images in sources.items():
        if not images:
            yield f"no image of the source {name!r} is written"


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
        images = "1 image has lost all of its" if lost == 1 else f"{lost:,} images have lost all"
        causes.insert(0, f"{images} objects")
        fix += " --set objects_lost=keep"
    if total.objects or not causes:
        return []
    return [f"{', '.join(causes)}; if that is intended: {fix}"]


def _warn_of_image_ids(census: Census, *, config: Mapping[str, Any]) -> Iterator[str]:
    """Warns of splits in which several images have one id, unless the config numbers them."""
    dropped = config.get("features", {}).get("drop", ())
    key = "annotation/image_id" if config.get("example_per") == "annotation" else _SOURCE_ID
    if config.get("source_id") == "number" or {key, _SOURCE_ID} <= {*dropped}:
        return
    for split, (image_id, keys) in census.repeated_ids().items():
        names = " and ".join(map(repr, keys))
        yield (
            f"images of split {split!r} have the same id, such as {image_id!r} of {names}: ids "
            f"count within one annotation file, so {_SOURCE_ID} does not identify an image; "
            "source_id: number (--source-id number) gives each image its own"
        )


def describe_void_maps(
    statistics: Mapping[str, Statistics], *, classes: Collection[str], limit: int | None
) -> list[str]:
    """Describes why no map of a dataset shows a class: all pixels are to be ignored, or 0.

    A sample does not show what the whole dataset has.
    """
    found = {name: split for name, split in statistics.items() if split.pixels_by_class}
    void = _find_void_maps(found, classes=classes)
    if not void or len(void) < len(found) or limit is not None:
        return []
    return [
        f"their pixels are {_VOID}; if 255 is a class, say which: mask_values: {{255: 1}}; if the "
        "maps are not needed, leave them out (semantic_masks, semantic)"
    ]


_VOID = "255 (to be ignored) or 0 (background)"


def _find_void_maps(statistics: Mapping[str, Statistics], *, classes: Collection[str]) -> list[str]:
    """Finds the splits whose maps hold nothing but pixels to be ignored, and background."""
    # Values of no class are named by their numbers, and so may classes be.
    no_classes = {"0", "255"} - {*classes}
    return [
        name
        for name, split in statistics.items()
        if "255" in no_classes & split.pixels_by_class.keys()
        and split.pixels_by_class.keys() <= no_classes
    ]


def warn_of_void_maps(
    statistics: Mapping[str, Statistics], *, classes: Collection[str]
) -> Iterator[str]:
    """Names the splits whose maps show no class, as in test sets without published maps."""
    for name in _find_void_maps(statistics, classes=classes):
        yield f"no map of split {name!r} shows a class: their pixels are {_VOID}"


def _warn_of_unannotated(splits: Mapping[str, SplitOutcome]) -> Iterator[str]:
    """Warns of splits of a dataset of objects in which most images have no annotations."""
    for name, split in splits.items():
        if 2 * split.unannotated > split.images:
            yield (
                f"more than half of the images of split {name!r} have no annotations; if they "
                "are not negatives, check the annotations' names, or leave these images out: "
                "--unannotated drop"
            )

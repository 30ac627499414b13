"""Refuses a build before it writes, if images and annotations do not belong together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import msgspec

from shardbeam.transforms.core.counts import (
    FILES,
    FOLDERS,
    IMAGES,
    MASKS,
    RECORDS,
    REJECTS,
    Counts,
    encode_element,
    lost_error,
)
from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.core.reasons import Reason
from shardbeam.transforms.core.text import show_name
from shardbeam.transforms.dataset.input_counts import InputCounts, SourceSamples
from shardbeam.transforms.formats.base import Format
from shardbeam.transforms.formats.join.sources import (
    FilePart,
    Root,
    Source,
    list_annotation_files,
    list_roots,
)
from shardbeam.transforms.formats.names import foreign_name, normalize_for_match

# Fewer boxes do not show what their numbers mean.
_FEW_BOXES = 3

_UNITS_FIX = (
    "Then set box_units: fraction (--box-units fraction), which reads them as fractions of the "
    "images' sides"
)

_UNITS_ELSEWHERE = (
    "This format has boxes in pixels only; a table may have fractions: write the boxes as CSV with "
    "the columns image, label, xmin, ymin, xmax and ymax, and build that "
    "(docs/reference/formats/csv.md)"
)

# {`match`: what it joins by}
_MATCHES = {
    "suffix": "their last folder and name, without case and extension",
    "name": "their name alone, without case and extension",
}


def check_listing(inputs: InputCounts, *, sources: Sequence[Source]) -> InputCounts:
    """Refuses a listing if the runner lost or doubled a part of it.

    Raises:
        InputError: It did; the message says what was sent and what arrived.
    """
    return _check_arrived(
        inputs, roots=list_roots(sources), files=(), but=(FILES, IMAGES, MASKS, REJECTS)
    )


def check_arrived(inputs: InputCounts, *, sources: Sequence[Source]) -> InputCounts:
    """Refuses a join if the runner lost or doubled elements on the way.

    The roots and annotation files are known from the plan, so that a bundle that is lost together
    with its counts is noticed.

    Returns:
        The counts, which now hold the roots and files that the plan sends.

    Raises:
        InputError: It did; the message says what was sent and what arrived.
    """
    return _check_arrived(
        inputs,
        roots=list_roots(sources),
        files=list_annotation_files(sources),
        but=(RECORDS, REJECTS),
    )


def _check_arrived(
    inputs: InputCounts, *, roots: Iterable[Root], files: Iterable[FilePart], but: Collection[str]
) -> InputCounts:
    counts = Counts()
    counts.add(inputs.counts)
    for root in roots:
        counts.send(FOLDERS, encode_element(root))
    for file in files:
        counts.send(FILES, encode_element(file))
    if lost := counts.lost(but=but):
        raise lost_error(lost)
    return msgspec.structs.replace(inputs, counts=counts)


def check_join(inputs: InputCounts, *, sources: Iterable[Source]) -> None:
    """Refuses a join in which no annotation of a source names a listed image: its root is wrong.

    Raises:
        InputError: No annotation matches; the message names a listed key, an annotated key, and
            the likely fix.
    """
    for source in sources:
        seen = inputs.samples.sources.get(source.name, SourceSamples())
        if seen.referenced and not seen.matched:
            where = ", ".join(source.format.roots() or source.format.annotation_files())
            reasons = [Reason.ANNOTATION_MALFORMED]
            if not source.format.roots():
                # Images that are in the annotation files are not looked for elsewhere.
                reasons.append(Reason.MISSING_IMAGE)
            rejects = [
                reject
                for first in inputs.samples.first_rejects.values()
                for reject in first
                if reject.reason in reasons and reject.source == source.name
            ]
            number = sum(
                each.rejected.get(reason.value, 0)
                for each in inputs.splits.values()
                for reason in reasons
            )
            if rejects and number >= seen.referenced:
                raise InputError(
                    uri=where,
                    problem=f"none of the {seen.referenced} annotations can be used, such as "
                    f"{show_name(rejects[0].key)}: {rejects[0].detail}",
                )
            listed = show_name(seen.listed_key) if seen.listed_key else "no image"
            referenced = show_name(seen.referenced_key) if seen.referenced_key else "no file"
            if listed == referenced:
                listed = "the same name, but this format joins by the name without the extension"
            archives = "" if seen.listed_key else inputs.samples.describe_archives()
            fix = archives or _suggest_fix(seen, source_format=source.format)
            raise InputError(
                uri=where,
                problem=(
                    f"none of the {seen.referenced} annotated images is listed here: the "
                    f"annotations name {referenced}, the listing holds {listed}; {fix}"
                ),
            )


def check_units(inputs: InputCounts, *, sources: Iterable[Source]) -> None:
    """Refuses a source whose boxes should be pixels and all lie within 0 to 1.

    Raises:
        InputError: There are at least three such boxes; the message names the likely fix.
    """
    for source in sources:
        seen = inputs.samples.sources.get(source.name, SourceSamples())
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


def check_image_ids(inputs: InputCounts, *, sources: Iterable[Source]) -> None:
    """Refuses a source none of whose images has an id that is a number.

    Raises:
        InputError: `annotation/image_id` could not be written for any image of the source.
    """
    for source in sources:
        seen = inputs.samples.sources.get(source.name, SourceSamples())
        if seen.unnumbered and not seen.numbered:
            raise InputError(
                uri=", ".join(source.format.roots()) or source.name,
                problem=f"none of its images with objects ({seen.unnumbered:,}) has an id that is "
                "a number, which example_per: annotation writes as annotation/image_id; set "
                "source_id: number (--source-id number), or leave the key out "
                "(features.drop: [annotation/image_id])",
            )


def check_masks(inputs: InputCounts) -> None:
    """Refuses a run that asks for masks if no object of the dataset can have one.

    Raises:
        InputError: No object has a segmentation, or none of the segmentations can be drawn.
    """
    masks = inputs.samples.masks
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


def _suggest_fix(seen: SourceSamples, *, source_format: Format) -> str:
    """Suggests the change with which most of the sampled names would match."""
    roots, root_key = source_format.roots(), source_format.ROOTS[0]
    by_name = {normalize_for_match(key, "name"): key for key in sorted(seen.listed_sample)}
    fixes: Counter[str] = Counter()
    for name in sorted(seen.referenced_sample):
        listed = by_name.get(normalize_for_match(name, "name"), "")
        if listed.endswith(f"/{name}"):
            fixes[source_format.move_down(listed.removesuffix(f"/{name}"))] += 1
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
            listed_ends = {normalize_for_match(key, match) for key in seen.listed_sample}
            count = sum(
                normalize_for_match(name, match) in listed_ends for name in seen.referenced_sample
            )
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

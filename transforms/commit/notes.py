"""Notes for the summary: facts that are no reason for a warning."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shardbeam.transforms.core.labels import LabelMap, list_classes
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.sharding import NO_SPLIT
from shardbeam.transforms.core.text import escape
from shardbeam.transforms.dataset.collectors.statistics import Statistics
from shardbeam.transforms.dataset.input_counts import InputCounts
from shardbeam.transforms.dataset.metadata import DatasetSettings
from shardbeam.transforms.dataset.outcome import SplitOutcome

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

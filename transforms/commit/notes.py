"""Notes for the summary: facts about a build that are no reason for a warning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from shardbeam.transforms.commit.gate import (
    RunCounts,
)
from shardbeam.transforms.core.labels import list_classes
from shardbeam.transforms.core.reasons import Exclusion
from shardbeam.transforms.core.sharding import NO_SPLIT
from shardbeam.transforms.core.text import counted, escape
from shardbeam.transforms.dataset.outcome import ROWS_ALONE

# A note names splits whose share of the images differs from their fraction by this much.
_NOTABLE_SHARE = 0.02


def make_notes(run: RunCounts) -> tuple[str, ...]:
    """Returns notes for the summary that are no reason for a warning, one line each."""
    return tuple(line for describe in _NOTES for line in describe(run))


def _describe_unlabelled(run: RunCounts) -> Iterator[str]:
    """Says how many images are written without annotations: a dataset of objects has negatives."""
    written = "as negatives" if run.dataset.objects else "without labels"
    for name, split in run.splits.items():
        if split.unannotated:
            yield (
                f"{split.unannotated:,} of {split.listed_images:,} images of {name} have no "
                f"annotations and are written {written}"
            )


def _describe_rows(run: RunCounts) -> Iterator[str]:
    """Says that Examples are rows alone."""
    if not run.dataset.has_images:
        yield ROWS_ALONE


def describe_outlines(run: RunCounts) -> Iterator[str]:
    """Says how many objects have outlines that are not written, and how they are."""
    if count := run.inputs.outlines:
        have = counted(count, "object has an outline", "objects have outlines")
        are = "is" if count == 1 else "are"
        yield f"{have}, which {are} not written: masks: png (--masks png) writes them as masks"


def _describe_empty_shards(run: RunCounts) -> Iterator[str]:
    """Says that a split has fewer images than shards."""
    config = run.dataset.config
    wanted = config.get("output", {}).get("num_shards") or 0
    if config.get("limit") is not None or config.get("example_per") == "annotation":
        return
    for name in run.dataset.splits:
        shards = wanted if isinstance(wanted, int) else wanted.get(name, 0)
        images = run.joined(name).images
        if images < shards:
            yield (
                f"output.num_shards: {name} has {counted(images, 'image')} for {shards:,} shards, "
                "so some are empty"
            )


def _describe_numbers(run: RunCounts) -> Iterator[str]:
    """Says that classes named by numbers have other labels than the order of these numbers."""
    label_map = run.label_map
    names = sorted(label_map.ids, key=label_map.ids.__getitem__)
    is_number = (name.isascii() and name.isdigit() for name in names)
    if not (run.dataset.classifies and all(is_number)):
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


def _describe_untrained(run: RunCounts) -> Iterator[str]:
    """Says which classes of the other splits the split `train` lacks."""
    statistics = run.statistics
    # A sample does not show what the whole dataset has.
    if "train" not in statistics or run.dataset.config.get("limit") is not None:
        return
    known = statistics["train"].images_by_class
    for name, split in statistics.items():
        missing = sorted(set(split.images_by_class) - set(known))
        if missing and known:
            number = counted(len(missing), "class is", "classes are")
            yield f"{number} in {name} and not in train: {list_classes(missing)}"


def _describe_fractions(run: RunCounts) -> Iterator[str]:
    """Compares the shares of the images with the fractions that were asked for."""
    config = run.dataset.config
    fractions: Mapping[str, float] = config.get("fractions") or {}
    # A sample does not show the sizes of the whole dataset.
    if not fractions or any(config.get(key) for key in ("exact", "stratify", "limit")):
        return
    images = {split: run.joined(split).images for split in fractions}
    shares = {split: count / max(1, sum(images.values())) for split, count in images.items()}
    if any(abs(shares[split] - fractions[split]) >= _NOTABLE_SHARE for split in fractions):
        found = ", ".join(f"{split} {shares[split]:.0%}" for split in fractions)
        wanted = ", ".join(f"{split} {fractions[split]:.0%}" for split in fractions)
        yield (
            f"fractions are approximate: {found} of the images, instead of {wanted}; a hash of its "
            "name puts each image into a split, so that it never changes its split when others are "
            "added; --exact makes the fractions exact"
        )


def _describe_left_out(run: RunCounts) -> Iterator[str]:
    """Says which images are left out because nothing names them, one line per split."""
    dataset, samples = run.dataset, run.inputs.samples
    for name in (*dataset.splits, NO_SPLIT):
        split = run.joined(name)
        count = split.excluded.get(Exclusion.UNANNOTATED.value, 0)
        if not count:
            continue
        examples = escape(", ".join(samples.excluded(Exclusion.UNANNOTATED, split=name)))
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
        yield line


def _describe_in_no_split(run: RunCounts) -> Iterator[str]:
    """Says how many images are left out because no split names them."""
    count = run.inputs.excluded(Exclusion.IN_NO_SPLIT)
    if count:
        examples = escape(", ".join(run.inputs.samples.excluded(Exclusion.IN_NO_SPLIT)))
        are = "image belongs to no split and is", "images belong to no split and are"
        yield f"{counted(count, *are)} left out, such as {examples}"


_NOTES: Sequence[Callable[[RunCounts], Iterator[str]]] = (
    _describe_unlabelled,
    _describe_rows,
    describe_outlines,
    _describe_left_out,
    _describe_in_no_split,
    _describe_fractions,
    _describe_empty_shards,
    _describe_numbers,
    _describe_untrained,
)

"""Says in a few numbers what a dataset is: the first lines of the page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from rich.filesize import decimal

from shardbeam.readers.report.facts import Facts
from shardbeam.transforms.dataset.collectors.statistics import Statistics

# If there are more splits, only their number is named.
_SPLITS = 4


def make_tiles(
    facts: Facts, *, examples: Mapping[str, int], total: Statistics
) -> Iterator[tuple[str, str]]:
    """Yields the numbers that say what a dataset is, and the words for each.

    Args:
        facts: Its metadata.
        examples: `{split: how many Examples it has}`.
        total: What is in all splits.
    """
    number = sum(examples.values())
    # With an Example for each object, an image counts several times.
    what = "images" if total.images == number else "examples"
    yield f"{number:,}", f"{what}{_list_splits(examples)}"
    counts = total.objects_by_class or total.images_by_class
    objects = sum(total.objects_by_class.values())
    by_objects = {int(key): images for key, images in total.images_by_objects.items()}
    if objects:
        spread = ""
        if number and by_objects:
            average = objects / number
            spread = f", {average:.1f} an image ({min(by_objects):,} to {max(by_objects):,})"
        yield f"{objects:,}", f"objects{spread}"
    if total.captions:
        yield f"{total.captions:,}", f"captions, {total.captions / number:.1f} an image"
    names = counts.keys() | facts.labels.keys()
    if names:
        found = [count for count in counts.values() if count]
        of = "objects" if total.objects_by_class else "images"
        least = min(found, default=0) if len(found) == len(names) else 0
        spread = f", {least:,} to {max(found):,} {of} each" if len(found) > 1 else ""
        yield f"{len(names):,}", f"{'class' if len(names) == 1 else 'classes'}{spread}"
    without, which = (
        (by_objects.get(0, 0), "objects") if objects else (total.unannotated, "annotations")
    )
    if without:
        images = "image" if without == 1 else "images"
        yield f"{without:,}", f"{images} without {which} ({without / max(1, number):.1%})"
    size = decimal(sum(split.num_bytes for split in facts.splits))
    shards = sum(len(split.shards) for split in facts.splits)
    sizes = f", images of {_describe_sizes(total)}" if total.width_range else ""
    yield size, f"in {shards:,} {'shard' if shards == 1 else 'shards'}{sizes}"


def _list_splits(examples: Mapping[str, int]) -> str:
    if len(examples) > _SPLITS:
        return f" in {len(examples):,} splits"
    if len(examples) == 1:
        return f" in {next(iter(examples))}"
    listed = " · ".join(f"{name} {count:,}" for name, count in examples.items())
    return f": {listed}" if listed else ""


def _describe_sizes(total: Statistics) -> str:
    sides = (
        f"{ends[0]:,}" if ends[0] == ends[-1] else f"{ends[0]:,}\N{EN DASH}{ends[-1]:,}"
        for ends in (total.width_range, total.height_range)
    )
    return " \N{MULTIPLICATION SIGN} ".join(sides) + " px"

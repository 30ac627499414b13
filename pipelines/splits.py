"""The splits of a build, as its config or the formats of its sources name them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import msgspec

from shardbeam.configs.decoding import convert_value
from shardbeam.configs.problem import Problem
from shardbeam.configs.schema import Config, Name
from shardbeam.transforms.core.sharding import SplitAssignment
from shardbeam.transforms.formats.join.sources import GIVEN_SOURCE, Source

# The split of all images if nothing names another one.
_DEFAULT_SPLIT = "train"


def assign_splits(config: Config, *, sources: Sequence[Source]) -> SplitAssignment:
    """Finds out which split an image belongs to: by its source, its format, or by fractions.

    Raises:
        Problem: A format's split cannot name one, or only some of the sources predefine splits.
    """
    predefined: tuple[str, ...] = ()
    by_source: dict[str, str] = {}
    if isinstance(config.splits, list):
        predefined = tuple(config.splits)
    elif sources == (GIVEN_SOURCE,) and not config.fractions:
        by_source = {GIVEN_SOURCE.name: _DEFAULT_SPLIT}
    elif config.source is None and not config.fractions:
        by_source = {source.name: source.name.partition("/")[0] for source in sources}
    elif not config.fractions:
        predefined = _predefined_splits(sources)
        if not predefined:
            by_source = {source.name: _DEFAULT_SPLIT for source in sources}
    for split in predefined:
        try:
            convert_value(split, Name)
        except msgspec.ValidationError as error:
            raise Problem(
                ("source",),
                f"{split!r} cannot name a split: expected a letter, then letters, digits and _",
            ) from error
    return SplitAssignment(
        by_source=by_source,
        fractions=config.fractions,
        group_by=None if config.group_file is not None else config.group_by,
        grouped=config.group_file is not None,
        seed=config.seed,
        predefined=predefined,
        exact=config.exact or config.stratify,
        stratify=config.stratify,
    )


def _predefined_splits(sources: Iterable[Source]) -> tuple[str, ...]:
    """Returns the splits that sources predefine, in order; either all of them do, or none does."""
    try:
        splits = {source.name: source.format.predefined_splits() for source in sources}
    except Problem as problem:
        raise Problem(("source", *problem.path), problem.text) from problem
    if any(splits.values()):
        for name, own in splits.items():
            if not own:
                others = ", ".join(dict.fromkeys(itertools.chain(*splits.values())))
                raise Problem(
                    ("source",),
                    f"{name!r} predefines no splits, and the others do ({others}); add "
                    "fractions, or name the sources of each split in splits",
                )
    return tuple(dict.fromkeys(itertools.chain(*splits.values())))

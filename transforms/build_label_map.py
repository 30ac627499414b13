"""BuildLabelMap: which classes there are, under which ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from shardbeam.transforms.coders import register_coders
from shardbeam.transforms.core.labels import LabelMap, LabelSettings, build_label_map
from shardbeam.transforms.core.records import Category
from shardbeam.transforms.dataset.tally import JoinTally

register_coders()


@dataclasses.dataclass(eq=False, kw_only=True)
class BuildLabelMap(beam.PTransform[Any, PCollection[LabelMap]]):
    """Builds one `LabelMap` of the categories that files declare and that names tell.

    Args:
        settings: What the config says about labels.
        objects: Whether the labels are of objects (0 is then the background).

    Raises:
        InputError: (at run time) Sources contradict each other, or the config names a class
            that there is not.
    """

    settings: LabelSettings
    objects: bool

    def expand(
        self, inputs: tuple[PCollection[Category], PCollection[JoinTally]]
    ) -> PCollection[LabelMap]:
        """Adds the step: `(categories, tally) | BuildLabelMap(...)`."""
        categories, tally = inputs
        # Some formats declare a class with each image, and none of that is gathered in one place.
        distinct = categories | "Distinct" >> beam.CombineGlobally(DistinctCategories())
        return tally | "Build" >> beam.Map(
            _build, pvalue.AsSingleton(distinct), settings=self.settings, objects=self.objects
        )


# All of a category but its origin.
_Identity = tuple[str, int | None, tuple[str, ...], bool]


class DistinctCategories(beam.CombineFn):
    """Leaves one of equal categories: that of the first origin, in order."""

    def create_accumulator(self) -> dict[_Identity, str]:
        """Begins with none."""
        return {}

    def add_input(
        self, accumulator: dict[_Identity, str], category: Category
    ) -> dict[_Identity, str]:
        """Adds one."""
        identity = (category.name, category.source_id, category.keypoints, category.is_thing)
        known = accumulator.get(identity)
        if known is None or category.origin < known:
            accumulator[identity] = category.origin
        return accumulator

    def merge_accumulators(
        self, accumulators: Iterable[dict[_Identity, str]]
    ) -> dict[_Identity, str]:
        """Adds sets up, in any order."""
        merged: dict[_Identity, str] = {}
        for accumulator in accumulators:
            for identity, origin in accumulator.items():
                merged[identity] = min(origin, merged.get(identity, origin))
        return merged

    def extract_output(self, accumulator: dict[_Identity, str]) -> tuple[Category, ...]:
        """Returns what is left, in an order that does not depend on the runner."""
        return tuple(
            Category(
                name=name,
                source_id=source_id,
                origin=origin,
                keypoints=keypoints,
                is_thing=is_thing,
            )
            for (name, source_id, keypoints, is_thing), origin in sorted(
                accumulator.items(), key=repr
            )
        )


def _build(
    tally: JoinTally, categories: Iterable[Category], *, settings: LabelSettings, objects: bool
) -> LabelMap:
    told = [Category(name=name, origin="the images' names") for name in tally.labels]
    return build_label_map(categories=[*categories, *told], settings=settings, objects=objects)

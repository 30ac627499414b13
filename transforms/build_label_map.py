"""BuildLabelMap: which classes there are, under which ids."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

import apache_beam as beam
from apache_beam import pvalue
from apache_beam.pvalue import PCollection

from transforms.coders import register_coders
from transforms.labels import LabelMap, LabelSettings, build_label_map
from transforms.records import Category
from transforms.tally import JoinTally

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
        return tally | "Build" >> beam.Map(
            _build, pvalue.AsIter(categories), settings=self.settings, objects=self.objects
        )


def _build(
    tally: JoinTally, categories: Iterable[Category], *, settings: LabelSettings, objects: bool
) -> LabelMap:
    told = [Category(name=name, origin="the images' names") for name in tally.labels]
    return build_label_map(categories=[*categories, *told], settings=settings, objects=objects)

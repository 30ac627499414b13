"""CheckJoin: stops a run whose images and annotations do not belong together."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.coders import register_coders
from shardbeam.transforms.dataset.tally import JoinTally, check_join
from shardbeam.transforms.formats.sources import Source

register_coders()


@dataclasses.dataclass(eq=False, kw_only=True)
class CheckJoin(beam.PTransform[PCollection[JoinTally], PCollection[JoinTally]]):
    """Lets the join's tally through, unless no annotation of a source names a listed image.

    Args:
        sources: The sources.

    Raises:
        InputError: (at run time) With one listed key, one annotated one and the likely mend.
    """

    sources: Sequence[Source]

    def expand(self, tally: PCollection[JoinTally]) -> PCollection[JoinTally]:
        """Adds the step to a pipeline."""
        return tally | "Check" >> beam.Map(check_join, sources=self.sources)

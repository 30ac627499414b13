"""TakeCensus: all that was counted, in one place."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.dataset.census import Census, merge_censuses


class TakeCensus(beam.PTransform[tuple[PCollection[Census], ...], PCollection[Census]]):
    """Merges what bundles have counted: `(listed.census, …) | TakeCensus()` → one `Census`.

    Each bundle of a step gives a census, and an attempt that is repeated gives another instead
    of it. So there is always one, and none is counted twice.
    """

    def expand(self, censuses: tuple[PCollection[Census], ...]) -> PCollection[Census]:
        """Adds the step to a pipeline."""
        merge = beam.CombineGlobally(merge_censuses).with_input_types(Census)
        return (
            censuses
            | beam.Flatten()
            | "Merge" >> merge.with_output_types(Census).without_defaults()
        )

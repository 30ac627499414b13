"""MergeCounts: merges everything that was counted."""

from __future__ import annotations

import apache_beam as beam
from apache_beam.pvalue import PCollection

from shardbeam.transforms.dataset.input_counts import InputCounts, merge_inputs


class MergeCounts(beam.PTransform[tuple[PCollection[InputCounts], ...], PCollection[InputCounts]]):
    """Merges the counts of all bundles: `(listed.counts, …) | MergeCounts()` → one `InputCounts`.

    Each bundle of a step emits its counts. If Beam repeats a bundle, the new counts replace the
    old one, so that nothing is counted twice.
    """

    def expand(self, counts: tuple[PCollection[InputCounts], ...]) -> PCollection[InputCounts]:
        """Adds the step to a pipeline."""
        merge = beam.CombineGlobally(merge_inputs).with_input_types(InputCounts)
        return (
            counts
            | beam.Flatten()
            | "Merge" >> merge.with_output_types(InputCounts).without_defaults()
        )

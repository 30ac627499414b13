"""What a step gives at the end of a bundle, where Beam knows no window for it."""

from __future__ import annotations

from typing import Any

from apache_beam import pvalue
from apache_beam.transforms import window
from apache_beam.utils import windowed_value


def in_global_window(output: Any) -> Any:  # noqa: ANN401  # Whatever a step gives.
    """Puts an output, tagged or not, into the only window that there is."""
    if isinstance(output, pvalue.TaggedOutput):
        return pvalue.TaggedOutput(output.tag, in_global_window(output.value))
    everything = window.GlobalWindow()
    return windowed_value.WindowedValue(output, everything.max_timestamp(), (everything,))

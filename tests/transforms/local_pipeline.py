"""Pipelines for the tests of single transforms."""

from __future__ import annotations

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_pipeline

from pipelines.local_runner import LocalRunner


def local_pipeline() -> test_pipeline.TestPipeline:
    """A pipeline that runs in this process as soon as its `with` block ends."""
    options = PipelineOptions([])
    return test_pipeline.TestPipeline(runner=LocalRunner(options=options), options=options)

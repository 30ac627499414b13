"""Pipelines for the tests of single transforms."""

from __future__ import annotations

from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing.test_pipeline import TestPipeline

from pipelines.local_runner import LocalRunner


def local_pipeline() -> TestPipeline:
    """A pipeline that runs in this process as soon as its `with` block ends."""
    options = PipelineOptions([])
    return TestPipeline(runner=LocalRunner(options=options), options=options)

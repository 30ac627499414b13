"""Makes the graph of a build without running it."""

from __future__ import annotations

import apache_beam as beam

from shardbeam.pipelines.build import build_dataset
from shardbeam.pipelines.cli.arguments import parse_arguments
from shardbeam.pipelines.cli.commands import BuildArguments
from shardbeam.pipelines.plan import make_plan
from shardbeam.pipelines.runners.options import make_options
from shardbeam.transforms.commit.commit import CommitSettings
from shardbeam.transforms.commit.runs import RunSettings
from shardbeam.transforms.core.resources import Resources
from shardbeam.transforms.staging.staging import Staging


def count_steps(pipeline: beam.Pipeline) -> int:
    """Counts the transforms that a runner runs: those with outputs and without inner transforms."""
    steps = pipeline.to_runner_api().components.transforms.values()
    return sum(
        not step.subtransforms and bool(set(step.outputs.values()) - set(step.inputs.values()))
        for step in steps
    )


def build_graph(*words: str) -> beam.Pipeline:
    """Makes the pipeline that a command line would run."""
    arguments = parse_arguments(words)
    assert isinstance(arguments, BuildArguments)
    plan = make_plan(arguments.config)
    pipeline = beam.Pipeline(options=make_options())
    build_dataset(
        pipeline,
        plan=plan,
        commit=CommitSettings(
            dataset=plan.dataset,
            run=RunSettings(started_at="2026-01-01T00:00:00+00:00", runner="", annotation_files=()),
            staging=Staging(output=plan.output, plan=plan.digest, run_id="test"),
        ),
        resources=Resources(),
    )
    return pipeline

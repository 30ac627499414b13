"""Running the graphs: before, while and after."""

from __future__ import annotations

import contextlib
import datetime
import re
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import apache_beam as beam
import msgspec
from apache_beam.options.pipeline_options import PipelineOptions

from pipelines.arguments import BuildArguments
from pipelines.build import build_dataset
from pipelines.local_runner import LocalRunner, make_runner
from pipelines.output_state import OutputError, check_apart, is_committed
from pipelines.plan import Plan, make_plan
from pipelines.preview import preview_dataset, summarize_listing_only
from pipelines.progress import ProgressMonitor, ProgressSnapshot
from pipelines.summary import print_summary
from transforms.errors import InputError
from transforms.output.dataset import RunRecord, RunSettings, read_runs, run_path
from transforms.output.listing import ListingSummary
from transforms.output.outcome import Outcome, Status
from transforms.output.staging import Staging
from transforms.storage import join_uri, storage_for

T = TypeVar("T")

# How an error of ours looks within the text of a runner's error, which has lost its type.
_INPUT_ERROR = re.compile(r"transforms\.errors\.InputError: (.*?)(?: \[while running [^\]]*\])?$", re.M)

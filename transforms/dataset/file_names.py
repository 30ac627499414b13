"""Names of the files in a dataset's folder."""

from __future__ import annotations

import re

DATASET_INFO = "dataset_info.json"
STAGING_FOLDER = ".staging"
MANIFEST = "manifest.json"
FEATURES = "features.json"
STATISTICS = "statistics.json"
CROISSANT = "croissant.json"
# The data card; people may add to it.
CARD = "README.md"
RUNS_FOLDER = "runs"
# Strict, because a user may have a `runs` folder, too.
RUN_FILE = re.compile(rf"{RUNS_FOLDER}/\d{{8}}T\d{{6}}\.\d{{6}}Z\.json")


def run_path(run_id: str) -> str:
    """Returns the path of a run's record, below the dataset's folder."""
    return f"{RUNS_FOLDER}/{run_id}.json"

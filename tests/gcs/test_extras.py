"""What works where `apache-beam[gcp]` is not installed: everything but Dataflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.dataset import coco_words, dataset_files, read_dataset
from tests.support.gcs_server import ProxiedGcs

WITHOUT_CLIENTS = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("apache_beam.io.gcp.", "apitools", "google.cloud.dataflow")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from shardbeam.pipelines.cli import main
sys.exit(main(sys.argv[1:]))
"""


def run_without_clients(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", WITHOUT_CLIENTS, *words],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=280,
    )


def test_builds_without_the_clients_of_dataflow(
    gcs: ProxiedGcs, bucket: str, shapes: Path, tmp_path: Path
) -> None:
    words = coco_words(shapes, tmp_path / "out")
    local = run_without_clients(*words)
    assert local.returncode == 0, local.stderr
    words[words.index(str(tmp_path / "out"))] = f"{bucket}/out"
    remote = run_without_clients(*words)
    assert remote.returncode == 0, remote.stderr
    assert dataset_files(gcs.read_tree(f"{bucket}/out")) == read_dataset(tmp_path / "out")

    refused = run_without_clients(*words, "--overwrite", "--runner=DataflowRunner")
    assert refused.returncode == 2
    assert "pip install 'shardbeam[dataflow]'" in refused.stderr
    assert "Traceback" not in refused.stderr

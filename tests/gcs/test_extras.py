"""Without `apache-beam[gcp]`, everything works but Dataflow."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.gcs.conftest import SETTINGS
from tests.support.dataset import Tree, coco_words
from tests.support.gcs_server import ProxiedGcs

WITHOUT_CLIENTS = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("apache_beam.io.gcp.", "apitools", "google.cloud.dataflow")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from shardbeam.pipelines.cli.main import main
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
    gcs: ProxiedGcs, bucket: str, shapes: Path, expected: Tree
) -> None:
    words = coco_words(shapes, f"{bucket}/out", *SETTINGS)
    built = run_without_clients(*words)
    assert built.returncode == 0, built.stderr
    assert gcs.read_dataset(f"{bucket}/out") == expected

    refused = run_without_clients(*words, "--overwrite", "--runner=DataflowRunner")
    assert refused.returncode == 2
    assert "pip install 'apache-beam[gcp]<3,>=2.76'" in refused.stderr
    assert "Traceback" not in refused.stderr

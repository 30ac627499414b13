"""TensorFlow Data Validation reads the shards, and counts as `statistics.json` does."""

from __future__ import annotations

import json
import os
import subprocess
import textwrap
from pathlib import Path

import pytest

from shardbeam.transforms.dataset.statistics_file import read_statistics
from tests.runners.tools import TOOLS
from tests.support.dataset import coco_words, run

_COUNT = """
    import json, sys
    import tensorflow_data_validation as tfdv

    (counted,) = tfdv.generate_statistics_from_tfrecord(sys.argv[1]).datasets
    values = {}
    for feature in counted.features:
        stats = getattr(feature, feature.WhichOneof("stats"))
        values["".join(feature.path.step)] = stats.common_stats.tot_num_values
    print(json.dumps({"examples": counted.num_examples, "values": values}))
"""


@pytest.mark.runners
def test_tfdv_reads_the_shards(shapes: Path, tmp_path: Path) -> None:
    python = TOOLS / "tfdv" / "bin" / "python"
    if not python.exists():
        pytest.skip("TensorFlow Data Validation is not here; `make tfdv` gets it")
    output = tmp_path / "out"
    assert run(*coco_words(shapes, output)).exit_code == 0
    written = read_statistics(str(output))
    assert written is not None

    done = subprocess.run(
        [python, "-c", textwrap.dedent(_COUNT), f"{output}/coco-train.tfrecord-*"],
        env={"PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["examples"] == written["train"].examples
    for key in ("image/object/class/text", "image/object/bbox/xmin", "image/object/area"):
        assert found["values"][key] == written["train"].objects
    assert found["values"]["image/encoded"] == written["train"].images

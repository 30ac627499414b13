"""The part on masks, with Shardbeam instead of the Model Garden, which is not installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import model_garden
from benchmarks.contenders import DECODE, HEADER
from tests.support.bench_report import tables

# Shardbeam's equivalents of the script's flags.
_STAND_IN = """
import sys
from pathlib import Path
from shardbeam.pipelines.cli.main import main

given = dict(zip(sys.argv[2::2], sys.argv[3::2]))
code = main([
    "build", "coco", "--json", "--images", given["--image_dir"],
    "--annotations", given["--object_annotations_file"],
    "--output", str(Path(given["--output_file_prefix"]).parent), "--set", "masks={masks}",
])
sys.exit(code)
"""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(model_garden, "_SCRIPT", "stand_in")
    monkeypatch.setattr(model_garden, "_install", lambda folder: Path(sys.executable))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "stand_in.py"


@pytest.mark.slow
def test_masks_part_measures_and_compares(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text(_STAND_IN.replace("{masks}", "png"))

    report = model_garden.run_masks(data=tmp_path, images=24, rounds=2)

    results, targets = tables(report)
    assert [row[0] for row in results[1:]] == [HEADER, DECODE, model_garden.MODEL_GARDEN]
    assert {row[-1] for row in targets[1:]} <= {"yes", "**no**"}
    assert "6 images of" in report
    assert "of 6 images were compared" in report


@pytest.mark.slow
def test_other_masks_are_an_error(stand_in: Path, tmp_path: Path) -> None:
    stand_in.write_text(_STAND_IN.replace("{masks}", "none"))

    with pytest.raises(RuntimeError, match="different masks"):
        model_garden.run_masks(data=tmp_path, images=24, rounds=1)

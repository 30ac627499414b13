"""Runs every part of the benchmarks on little data, to see that they run."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import memory, records, run, scale, storage
from benchmarks.contenders import (
    BOTH_LOOP,
    COPY,
    DECODE,
    DIGEST_LOOP,
    HEADER,
    NAIVE,
    PILLOW_LOOP,
    SIMPLEJPEG_LOOP,
    TFDS,
    with_processes,
)
from benchmarks.datasets import make_coco_like
from benchmarks.duplicates import run_duplicates
from benchmarks.findings import plant_and_find
from benchmarks.findings_cost import run_findings
from benchmarks.measure import SHARDBEAM
from shardbeam.transforms.containers.tfrecord import read_records
from shardbeam.transforms.examples.example_pb2 import Example
from tests.support.bench_report import tables
from tests.support.builds import write_coco
from tests.support.gcs_server import NAME, find_server
from tests.support.image_makers import photograph, save


def _run_quick(part: str, folder: Path) -> str:
    report = folder / "report.md"
    run.main(["--quick", "--only", part, "--data", str(folder / "data"), "--output", str(report)])
    return report.read_text(encoding="utf-8")


@pytest.mark.slow
def test_images_part_measures_every_contender(tmp_path: Path) -> None:
    pytest.importorskip("tensorflow_datasets")
    report = _run_quick("images", tmp_path)
    results, targets = tables(report)
    assert [(row[0], row[1]) for row in results[1:]] == [
        *((HEADER, "8"), (HEADER, "6"), (DECODE, "6"), (HEADER, "24"), (DECODE, "24")),
        *((with_processes(count), "24") for count in (1, 2, 4)),
        *((NAIVE, "24"), (TFDS, "24"), (COPY, "24"), (SIMPLEJPEG_LOOP, "24"), (PILLOW_LOOP, "24")),
        *((DIGEST_LOOP, "24"), (BOTH_LOOP, "24")),
    ]
    assert all(float(cell.replace(",", "")) >= 0 for row in results[1:] for cell in row[2:])
    assert len(targets) == 1 + 8
    assert {row[-1] for row in targets[1:]} <= {"yes", "**no**"}
    # The contenders' outputs are gone, and their inputs are kept.
    kept = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert kept == ["shapes-24", "shapes-24-first-6", "shapes-24-first-8"]


@pytest.mark.slow
def test_storage_part_measures_each_read_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if find_server() is None:
        pytest.skip(f"{NAME} is not here")
    monkeypatch.setattr(storage, "_READ_AHEAD", (8, 32))
    results, targets = tables(_run_quick("storage", tmp_path))
    assert [row[0].split(",")[0] for row in results[1:]] == [
        *["Shardbeam"] * 4,
        *["`FileSystems.open`"] * 2,
    ]
    assert all(float(cell.replace(",", "")) > 0 for row in results[1:] for cell in row[1:])
    assert len(targets) == 1 + 1


@pytest.mark.slow
def test_records_part_measures_every_contender(tmp_path: Path) -> None:
    processes, quarter, stages, targets = tables(_run_quick("records", tmp_path))
    both = [*records.BUILDS.values(), records.SCRIPT]
    # The Model Garden takes part only where the masks' part has installed it.
    others = [records.TFDS] if importlib.util.find_spec("tensorflow_datasets") else []
    assert [row[0] for row in processes[1:]] == [
        *(records.IMPORTS, records.SCRIPT_IMPORTS, records.PARSE_IMPORTS, records.PARSE),
        *(records.PLAN, *both, *others),
    ]
    assert [row[0] for row in quarter[1:]] == [records.IMPORTS, records.SCRIPT_IMPORTS, *both]
    seconds = [float(row[1]) for row in stages[1:]]
    assert len(seconds) == 3
    assert min(seconds[1:]) >= 0
    assert len(targets) == 1 + 10
    kept = sorted(path.name for path in (tmp_path / "data").iterdir())
    assert kept == ["coco-like-200", "coco-like-50"]


@pytest.mark.slow
def test_memory_part_measures_each_input_twice(tmp_path: Path) -> None:
    (rows,) = tables(_run_quick("memory", tmp_path))
    assert rows[0][3:5] == ["100 images, MB", "200 images, MB"]
    assert len(rows[1:]) == 4 * len(memory.COMMANDS)
    objects = [float(row[2]) for row in rows[1:]]
    assert objects == [*[0] * 4, *[7.3] * 4]
    # Python and its libraries alone.
    assert all(int(row[column]) > 80 for row in rows[1:] for column in (3, 4))


@pytest.mark.slow
def test_the_plain_script_writes_the_same_examples(tmp_path: Path) -> None:
    dataset = make_coco_like(tmp_path, images=40)
    (tmp_path / "plain").mkdir()
    paths = (str(dataset.images), str(dataset.annotations))
    for command in (
        (sys.executable, "-m", "benchmarks.plain_script", *paths, str(tmp_path / "plain"), "2"),
        (
            *(SHARDBEAM, "build", "coco", "--images", paths[0], "--annotations", paths[1]),
            *("--output", str(tmp_path / "ours"), "--json"),
        ),
    ):
        subprocess.run(command, check=True, capture_output=True)
    plain, ours = (_read_examples(tmp_path / name) for name in ("plain", "ours"))
    assert len(ours) == 40
    assert plain == ours


def _read_examples(folder: Path) -> dict[str, dict[str, list[object]]]:
    """Returns `{file name: {key: values}}`."""
    examples = {}
    for path in folder.glob("*.tfrecord*"):
        with path.open("rb") as file:
            for data in read_records(file):
                features = Example.FromString(data).features.feature
                values = {
                    key: [
                        *feature.bytes_list.value,
                        *feature.int64_list.value,
                        *feature.float_list.value,
                    ]
                    for key, feature in features.items()
                }
                examples[str(values["image/filename"])] = values
    return examples


@pytest.mark.slow
def test_scale_part_measures_every_stage(tmp_path: Path) -> None:
    stages, listings, *requests = tables(_run_quick("scale", tmp_path))
    assert [row[1] for row in stages[1:]] == [
        *("400 files", "400 rows", "400 rows", "400 images", "400 images", "400 records"),
        *("400 images", "400 rejects", "40 shards", "40 shards", "40 shards"),
    ]
    assert all(float(row[column].replace(",", "")) >= 0 for row in stages[1:] for column in (2, 3))
    assert [row[1] for row in listings[1:] if "gs://" in row[0]] == ["400", "400"]
    assert len(requests) == (0 if find_server() is None else 1)
    if requests:
        assert [row[1] for row in requests[0][1:]] == ["10", "10"]


def test_slopes_are_those_of_the_line_through_all_numbers() -> None:
    points = [
        scale.Point(number=number, wall_s=1, cpu_s=3 + 2e-6 * number, peak_bytes=7 + 500 * number)
        for number in (10_000, 100_000, 1_000_000)
    ]
    assert scale.slope(points, lambda point: point.cpu_s) == pytest.approx(2e-6)
    assert scale.slope(points, lambda point: point.peak_bytes) == pytest.approx(500)
    assert scale.slope(points[:1], lambda point: point.peak_bytes) == pytest.approx(500.0007)


@pytest.mark.parametrize(
    "flags",
    [["--images", "7"], ["--records", "9"], ["--rounds", "0"], ["--images", "x"], ["--only", "x"]],
)
def test_bad_flags_are_refused(flags: list[str], tmp_path: Path) -> None:
    data = tmp_path / "data"
    with pytest.raises(SystemExit) as raised:
        run.main([*flags, "--data", str(data)])
    assert raised.value.code == 2
    assert not data.exists()


def test_duplicates_part_plants_in_photographs_and_in_rows(tmp_path: Path) -> None:
    photographs = tmp_path / "photographs"
    photographs.mkdir()
    for seed in range(4):
        picture = photograph(width=200, height=150, seed=seed)
        (photographs / f"{seed}.jpg").write_bytes(save(picture, "JPEG"))
    (photographs / "copy.jpg").write_bytes((photographs / "0.jpg").read_bytes())
    (photographs / "small.jpg").write_bytes(save(photograph(), "JPEG"))
    report = run_duplicates(photographs=photographs, rows=2_000)
    assert report.startswith("## Duplicates\n\n4 photographs, of which 0 are flat. With what ")
    assert "these are 190 pairs: 40 are found, 0 of them of different pictures" in report
    found, slopes = tables(report)
    assert [row[1:] for row in found[1:]] == [["4", "100.0%"]] * 4
    assert [row[:3] for row in slopes[1:]] == [
        ["20", "0", "0"],
        ["200", "2", "2"],
        ["2,000", "20", "20"],
    ]
    assert "is not there" in run_duplicates(photographs=tmp_path / "none", rows=1_000)


@pytest.mark.slow
def test_planted_errors_are_found_in_photographs(tmp_path: Path) -> None:
    """Whole pictures come first, then parts of them; JSON files that are not COCO are skipped."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    (folder / "other.json").write_text("[1]")
    for seed in range(9):
        picture = photograph(width=320, height=240, seed=seed)
        (folder / f"{seed}.jpg").write_bytes(save(picture, "JPEG"))
    write_coco(
        folder / "instances.json",
        {
            "images": [{"id": seed, "file_name": f"a/{seed}.jpg"} for seed in range(9)],
            "annotations": [
                {"image_id": seed, "category_id": number, "bbox": [60 + seed, 60 * number, 90, 50]}
                for seed in range(9)
                for number in (1, 2 + seed % 2)
            ],
            "categories": [
                {"id": number, "name": name} for number, name in enumerate(("cat", "dog", "emu"), 1)
            ],
        },
    )
    (rows,) = tables(plant_and_find(folder, images=120))
    with_rules = [row for row in rows[1:] if row[2] != "no rule"]
    assert len(with_rules) == 15
    assert len(rows) == 1 + 15 + 4
    for name, errors, found, before, false_alarms, usual in with_rules:
        planted = 2 if "copy" in name else 1
        assert (errors, found, false_alarms, usual) == (str(planted), str(planted), "0", ""), name
        assert before == "0"


@pytest.mark.slow
def test_findings_are_measured_in_pairs(tmp_path: Path) -> None:
    report = run_findings(data=tmp_path, images=8, records=20, rounds=2)
    results, targets = tables(report)
    assert len(results[1:]) == len(targets[1:]) == 2
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["coco-like-20", "shapes-8"]

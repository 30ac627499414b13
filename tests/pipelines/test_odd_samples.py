"""Odd inputs end to end: every file of them is written, rejected or excluded as it should be."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.archive_files import write_files
from tests.support.builds import build
from tests.support.dataset import run
from tests.support.format_samples import observe
from tests.support.odd_samples import BAD_INPUTS, ODD_SAMPLES, BadInput, OddSample

# Their formats' own tests, or other samples here, show the same.
SLOW = {
    "csv: no header, decimal commas and empty cells; boxes.tsv",
    "csv: no header, decimal commas and empty cells; boxes.txt",
    "coco: a category 0",
    "coco: pictures that no file names --unannotated drop",
    "coco: pictures that no file names --unannotated keep",
    "csv: images that no row names are written --label-column class",
    "labelme: folders of splits in an archive",
    "labelme: folders of splits that the command does not ask for",
    "filename-label: folders of splits",
    "filename-label: folders that are no splits",
    "yolo: in an archive",
    "yolo: splits of the only YAML",
    "labelme: in archives",
    "labelme: the picture inside, in a tar",
    "image-folder: folders of splits in an archive",
    "image-folder: folders of splits that are none",
    "csv: a column a class",
}


def test_slow_samples_have_names_of_samples() -> None:
    assert {sample.name for sample in ODD_SAMPLES} > SLOW


@pytest.mark.parametrize(
    "sample",
    [
        pytest.param(each, marks=pytest.mark.slow if each.name in SLOW else (), id=each.name)
        for each in ODD_SAMPLES
    ],
)
def test_what_becomes_of_each_file(sample: OddSample, tmp_path: Path) -> None:
    data = sample.place(tmp_path / "data")

    built = build(*sample.command(data), output=tmp_path / "out")

    splits = [split for split in built.summary["splits"] if split]
    assert splits == list(sample.examples)
    for split in splits:
        found = built.by_key(split)
        assert {
            key: {name: observe(found[key].features, name) for name in expected}
            for key, expected in sample.examples[split].items()
        } == {
            key: {name: _near(value) for name, value in expected.items()}
            for key, expected in sample.examples[split].items()
        }
        assert found.keys() == sample.examples[split].keys()
    assert built.reasons() == Counter(sample.rejects.items())
    details = {reject["key"]: reject["detail"] for reject in built.rejects()}
    assert {key: details[key][: len(text)] for key, text in sample.details.items()} == (
        sample.details
    )
    assert str(tmp_path) not in json.dumps(built.rejects())
    counts = built.summary["splits"].values()
    for name, expected in (("excluded", sample.excluded), ("corrections", sample.corrections)):
        total = sum((Counter(each[name]) for each in counts), Counter[str]())
        assert total == Counter(expected), name
    assert Counter(each["what"] for each in built.corrections()) == Counter(sample.corrections)
    assert sum(each["unannotated"] for each in counts) == sample.unannotated


def _near(value: object) -> object:
    is_numbers = isinstance(value, list) and not any(isinstance(each, bytes) for each in value)
    return pytest.approx(value, abs=1e-6) if is_numbers else value


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_what_ends_the_run(bad: BadInput, tmp_path: Path) -> None:
    data = write_files(tmp_path / "data", bad.files)

    result = run("build", *bad.command(data), "--output", f"{tmp_path}/out")

    assert result.exit_code == bad.exit_code
    assert bad.message.replace("{data}", str(data)) in result.stderr
    assert result.stderr.count("\n") == 1

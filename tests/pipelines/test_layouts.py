"""Datasets as people lay them out are written as they are meant, and the summary says what is not.

Most of them only with `make test-slow`; `SHARDBEAM_DATA` names the folder of the real samples.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.builds import Build
from tests.support.dataset import run
from tests.support.layouts import LAYOUTS, QUICK, Layout


@pytest.mark.parametrize(
    "layout",
    [
        pytest.param(each, marks=() if each in QUICK else pytest.mark.slow, id=each.__name__)
        for each in LAYOUTS
    ],
)
def test_a_layout(layout: Layout, shared_data: Path, tmp_path: Path) -> None:
    expected = layout(tmp_path / "data", shared_data)
    output = tmp_path / "out"

    result = run("build", *map(str, expected.words), "--output", str(output))

    assert result.exit_code == expected.exit_code, result.stderr
    said = result.stdout + result.stderr
    assert [words for words in expected.says if words not in said] == [], said
    assert (output / "dataset_info.json").exists() == bool(expected.written)
    built = Build(output=output, exit_code=0, summary={}, stderr="")
    # Images of no split are counted in one without a name.
    splits = filter(None, built.manifest["splits"] if expected.written else ())
    found = {split: built.by_key(split) for split in splits}
    classes = {
        split: {
            key: [
                name.decode()
                for kind in ("image/object/class/text", "image/class/text")
                for name in example.features.get(kind, ())
            ]
            for key, example in examples.items()
        }
        for split, examples in found.items()
    }
    assert classes == expected.written
    for key, boxes in expected.boxes.items():
        assert found["train"][key].boxes == [pytest.approx(box, abs=1e-3) for box in boxes]

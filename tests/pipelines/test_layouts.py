"""Datasets as people lay them out are written as they are meant, and the summary says what is not.

`SHARDBEAM_DATA` names the folder of the real samples.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.builds import Build
from tests.support.dataset import run
from tests.support.layouts import LAYOUTS, Layout


@pytest.mark.parametrize("layout", LAYOUTS, ids=lambda layout: layout.__name__)
def test_a_layout(layout: Layout, shared_data: Path, tmp_path: Path) -> None:
    expected = layout(tmp_path / "data", shared_data)
    output = tmp_path / "out"

    result = run("build", *map(str, expected.words), "--output", str(output), exit_code=0)

    said = result.stdout + result.stderr
    assert [words for words in expected.says if words not in said] == [], said
    built = Build(output=output, exit_code=0, summary={}, stderr="")
    # Images of no split are counted in one without a name.
    found = {split: built.by_key(split) for split in filter(None, built.manifest["splits"])}
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

from __future__ import annotations

import collections
from typing import Any

import numpy as np
import pytest

from benchmarks.jpeg_damage import BIT_FLIPS, DAMAGES, is_found, make_damages, make_photographs
from shardbeam.configs.schema import ImageConfig
from shardbeam.transforms.core.errors import RejectedError
from shardbeam.transforms.images import jpeg
from shardbeam.transforms.images.check import check_image


def test_undamaged_photographs_are_accepted() -> None:
    photographs = make_photographs(count=5, seed=1)
    assert all(125_000 < len(photograph) < 145_000 for photograph in photographs)
    assert not any(is_found(photograph) for photograph in photographs)


@pytest.mark.parametrize("count", [120, pytest.param(1000, marks=pytest.mark.slow)])
def test_most_damages_are_found(count: int) -> None:
    total: collections.Counter[str] = collections.Counter()
    found: collections.Counter[str] = collections.Counter()
    for kind, data in make_damages(count=count, seed=1):
        total[kind] += 1
        found[kind] += is_found(data)

    def share(kinds: set[str]) -> float:
        return sum(found[kind] for kind in kinds) / sum(total[kind] for kind in kinds)

    kinds = set(total)
    assert total.total() == count
    assert max(total.values()) - min(total.values()) <= 1
    assert share(kinds) >= 0.8
    assert share(kinds - set(BIT_FLIPS)) >= 0.9
    assert share({"truncated"}) == 1


def judge(data: bytes) -> str:
    try:
        check_image(data, name="", settings=ImageConfig())
    except RejectedError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "options",
    [{}, {"progressive": True}, {"subsampling": 0}, {"restart_marker_blocks": 7}],
    ids=["4:2:0", "progressive", "4:4:4", "restarts"],
)
def test_a_reduced_picture_shows_all_that_the_full_one_shows(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    photographs = make_photographs(count=4, seed=1, **options)
    damaged = [damage(each, rng) for damage in DAMAGES.values() for each in photographs]
    found = [judge(data) for data in damaged]
    assert len(set(found)) > 10
    monkeypatch.setattr(jpeg, "jpeg_scale", lambda width, height: 1)
    assert found == [judge(data) for data in damaged]

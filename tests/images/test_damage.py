from __future__ import annotations

import collections

from benchmarks.jpeg_damage import BIT_FLIPS, is_found, make_damages, make_photographs


def test_undamaged_photographs_are_accepted() -> None:
    photographs = make_photographs(count=5, seed=1)
    assert all(125_000 < len(photograph) < 145_000 for photograph in photographs)
    assert not any(is_found(photograph) for photograph in photographs)


def test_most_of_1000_damages_are_found() -> None:
    total: collections.Counter[str] = collections.Counter()
    found: collections.Counter[str] = collections.Counter()
    for kind, data in make_damages(count=1000, seed=1):
        total[kind] += 1
        found[kind] += is_found(data)

    def share(kinds: set[str]) -> float:
        return sum(found[kind] for kind in kinds) / sum(total[kind] for kind in kinds)

    kinds = set(total)
    assert total.total() == 1000
    assert max(total.values()) - min(total.values()) <= 1
    assert share(kinds) >= 0.8
    assert share(kinds - set(BIT_FLIPS)) >= 0.9
    assert share({"truncated"}) == 1

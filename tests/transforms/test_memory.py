from __future__ import annotations

import gc

from transforms.memory import ignore_imported_garbage, keep_freed_memory


def test_memory_settings_can_be_made_again_and_again() -> None:
    for _ in range(2):
        keep_freed_memory()
        ignore_imported_garbage()
    assert gc.get_freeze_count() > 0
    gc.unfreeze()

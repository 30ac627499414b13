from __future__ import annotations

import gc
import subprocess
import sys

from transforms.process import without_collector

SCRIPT = """
import gc, sys
from transforms.process import tune_process
for _ in range(2):
    tune_process()
print(sys.getswitchinterval() < 0.005, gc.get_freeze_count() > 0)
"""


def test_a_process_is_tuned() -> None:
    run = subprocess.run([sys.executable, "-c", SCRIPT], check=True, capture_output=True, text=True)
    assert run.stdout.split() == ["True", "True"]


def test_the_collector_pauses_and_comes_back() -> None:
    frozen = gc.get_freeze_count()
    with without_collector():
        assert not gc.isenabled()
    try:
        assert gc.isenabled()
        assert gc.get_freeze_count() > frozen
    finally:
        gc.unfreeze()

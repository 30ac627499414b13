from __future__ import annotations

import subprocess
import sys

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

"""The error of a run."""

from __future__ import annotations


class RunError(Exception):
    """A run failed; the message is one line that names the file, the place and the fix."""

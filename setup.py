"""Packaging entry point; all metadata lives in pyproject.toml.

The file exists because Beam ships a checkout to remote workers with
`--setup_file ./setup.py`, which accepts no other name.
"""

import setuptools

setuptools.setup()

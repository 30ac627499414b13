"""Packaging: what is installed is one package, `shardbeam`; metadata lives in pyproject.toml.

The four folders at the root are its subpackages. A checkout and an editable install find them by
the links in `shardbeam/`. All other installs use the mapping below, because a zip of the source
holds the links as small text files, and setuptools would make an empty package of them.

Beam ships a checkout to remote workers with `--setup_file ./setup.py`, and accepts no other name.
"""

import setuptools

FOLDERS = ("configs", "pipelines", "readers", "transforms")

setuptools.setup(
    packages=[
        "shardbeam",
        *(f"shardbeam.{folder}" for folder in FOLDERS),
        *(
            f"shardbeam.{folder}.{package}"
            for folder in FOLDERS
            for package in setuptools.find_namespace_packages(folder)
            if not package.startswith("__")
        ),
    ],
    package_dir={f"shardbeam.{folder}": folder for folder in FOLDERS},
)

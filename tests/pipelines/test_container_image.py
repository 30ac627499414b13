from __future__ import annotations

import pytest

from shardbeam.pipelines.failures import UsageError
from shardbeam.pipelines.runners.options import check_image, own_versions


def test_the_name_of_an_image_of_beams_tells_its_versions() -> None:
    own = own_versions()
    check_image(f"apache/beam_python{own.python}_sdk:{own.beam}")
    with pytest.raises(UsageError, match=r"has Python 3\.1 and Beam 2\.1\.0, and this program"):
        check_image("docker.io/apache/beam_python3.1_sdk:2.1.0")


def test_other_images_are_not_looked_into() -> None:
    check_image("us-central1-docker.pkg.dev/project/images/shardbeam:0.2.0")

"""What a container image of workers holds, by its name and by what its registry tells."""

from __future__ import annotations

import logging
import platform
import re
from typing import Any, NamedTuple

import apache_beam
import google.auth
import google.auth.transport.requests
import requests
from google.auth.exceptions import GoogleAuthError

from shardbeam.pipelines.flags import UsageError

# The Dockerfile writes these labels.
PYTHON_LABEL = "shardbeam.python"
BEAM_LABEL = "shardbeam.beam"

_TIMEOUT_S = 20
_MANIFEST_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_BEAM_IMAGE = re.compile(r"(?:^|/)beam_python(?P<python>3\.\d+)_sdk:(?P<beam>\d+\.\d+\.\d+)")
_REFERENCE = re.compile(
    r"(?P<host>[^/]+\.[^/]+|[^/]+:\d+|localhost)/(?P<name>[^:@]+)"
    r"(?::(?P<tag>[^@]+))?(?:@(?P<digest>.+))?"
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
# Hosts to which an access token of Google's may be sent.
_GOOGLE_HOSTS = (".pkg.dev", ".gcr.io")

_log = logging.getLogger(__name__)


class Versions(NamedTuple):
    """What workers and whoever submits to them must have in common.

    Attributes:
        python: Python's major and minor version.
        beam: Beam's version.
    """

    python: str
    beam: str


def own_versions() -> Versions:
    """Returns those of this program."""
    major, minor, _ = platform.python_version_tuple()
    return Versions(python=f"{major}.{minor}", beam=apache_beam.__version__)


def check_image(image: str) -> None:
    """Refuses an image with another Python or Beam, which could not read what is pickled here.

    An image that does not tell is let through with a warning.

    Raises:
        UsageError: The versions differ.
    """
    own = own_versions()
    try:
        versions = read_versions(image)
    except (requests.RequestException, GoogleAuthError, LookupError, ValueError) as error:
        _log.warning(
            "%s: its versions cannot be read (%s); it must have Python %s and Beam %s",
            image,
            error,
            *own,
        )
        return
    if versions != own:
        raise UsageError(
            f"--sdk_container_image: {image} has Python {versions.python} and Beam "
            f"{versions.beam}, and this program runs on Python {own.python} and Beam {own.beam}; "
            "they must be the same"
        )


def read_versions(image: str) -> Versions:
    """Tells an image's versions: by its name, if it is one of Beam's own, or by its labels.

    Raises:
        LookupError: Neither tells.
        ValueError: The name is without a registry, or an answer cannot be read.
        requests.RequestException: The registry cannot be asked.
        GoogleAuthError: There are no credentials for it.
    """
    by_name = _BEAM_IMAGE.search(image)
    if by_name is not None:
        return Versions(**by_name.groupdict())
    labels = _read_labels(image)
    if PYTHON_LABEL not in labels or BEAM_LABEL not in labels:
        raise LookupError(f"no labels {PYTHON_LABEL} and {BEAM_LABEL}")
    return Versions(python=labels[PYTHON_LABEL], beam=labels[BEAM_LABEL])


def _read_labels(image: str) -> dict[str, str]:
    """Reads an image's labels from its registry.

    https://github.com/opencontainers/distribution-spec/blob/main/spec.md
    """
    reference = _REFERENCE.fullmatch(image)
    if reference is None:
        raise ValueError("its name is without a registry's host")
    host, name = reference["host"], reference["name"]
    local = host.partition(":")[0] in ("localhost", "127.0.0.1")
    registry = _Registry(f"{'http' if local else 'https'}://{host}/v2/{name}", host=host)
    manifest = registry.get(f"manifests/{reference['digest'] or reference['tag'] or 'latest'}")
    if "manifests" in manifest:
        manifest = registry.get(f"manifests/{_for_workers(manifest)}")
    config = registry.get(f"blobs/{manifest['config']['digest']}")
    return config["config"].get("Labels") or {}


def _for_workers(index: dict[str, Any]) -> str:
    """Picks the image for Dataflow's machines out of one for several."""
    for manifest in index["manifests"]:
        if manifest.get("platform", {}).get("architecture") == "amd64":
            digest: str = manifest["digest"]
            return digest
    raise LookupError("no image for amd64")


class _Registry:
    def __init__(self, root: str, *, host: str) -> None:
        self._root = root
        self._host = host
        self._headers = {"Accept": ", ".join(_MANIFEST_TYPES)}

    def get(self, path: str) -> dict[str, Any]:
        address = f"{self._root}/{path}"
        answer = requests.get(address, headers=self._headers, timeout=_TIMEOUT_S)
        if answer.status_code == requests.codes.unauthorized:
            self._headers["Authorization"] = f"Bearer {self._token(answer)}"
            answer = requests.get(address, headers=self._headers, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        value: dict[str, Any] = answer.json()
        return value

    def _token(self, refused: requests.Response) -> str:
        """Gets a token as the registry says, with this program's own credentials for Google's."""
        challenge = dict(_CHALLENGE.findall(refused.headers.get("WWW-Authenticate", "")))
        # A realm elsewhere must not get the credentials.
        realm = challenge.pop("realm", "")
        google_host = self._host.endswith(_GOOGLE_HOSTS) or self._host == "gcr.io"
        login = None
        if google_host and realm.startswith(f"https://{self._host}/"):
            login = ("oauth2accesstoken", _access_token())
        answer = requests.get(realm, params=challenge, auth=login, timeout=_TIMEOUT_S)
        answer.raise_for_status()
        token: str = answer.json()["token"]
        return token


def _access_token() -> str:
    credentials, _ = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])
    credentials.refresh(google.auth.transport.requests.Request())
    return str(credentials.token)

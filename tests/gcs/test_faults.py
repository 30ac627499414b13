"""Failing requests are repeated if that helps, and otherwise end with a clear error."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from google.api_core.exceptions import BadRequest
from google.auth import credentials as google_credentials
from google.auth import exceptions as auth_exceptions

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage import failures
from shardbeam.transforms.storage.base import ANONYMOUS_VARIABLE, StoredFile, WriteFailedError
from shardbeam.transforms.storage.gcs import client, objects
from shardbeam.transforms.storage.gcs import storage as gcs_storage
from shardbeam.transforms.storage.gcs.storage import GcsStorage
from shardbeam.transforms.storage.usage import usage_counter
from tests.support.gcs_proxy import FAULTS, Fault, Request
from tests.support.gcs_server import ProxiedGcs

STORAGE = GcsStorage()
DATA = bytes(range(256)) * 4
PART = 1 << 18


def fail(kind: str, faults: Iterable[Fault | None]) -> Callable[[Request], Fault | None]:
    """Gives the first requests of a kind these faults, in turn."""
    left = list(faults)

    def decide(request: Request) -> Fault | None:
        return left.pop(0) if request.kind == kind and left else None

    return decide


@pytest.fixture(autouse=True)
def _timeout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits a second for an answer that hangs, and long enough for one of a busy machine."""
    if "hang" in request.node.name:
        monkeypatch.setattr(failures, "TIMEOUT_S", (1.0, 1.0))


@pytest.fixture
def x(gcs: ProxiedGcs, bucket: str) -> str:
    uri = f"{bucket}/x"
    gcs.write(uri, DATA)
    return uri


def stat(uri: str) -> StoredFile:
    stored = STORAGE.stat(uri)
    assert stored is not None
    return stored


def renew(uri: str) -> bool:
    stored = stat(uri)
    STORAGE.renew(stored)
    return stat(uri).version != stored.version


def copy(uri: str) -> bool:
    copied = STORAGE.copy(uri, f"{uri.rpartition('/')[0]}/new")
    return copied is not None and copied.size_bytes == len(DATA)


def swap_twice(uri: str) -> bool:
    version = None
    for data in (b"first", b"second"):
        version = STORAGE.swap(uri, data, version=version)
        assert version == stat(uri).version
    return version is not None


def rename_over(source: str, uri: str) -> None:
    STORAGE.rename(source, uri, replaces=stat(uri).version)


THROTTLED = ("429", "503")
XY = {"x": DATA, "y": b"old"}
# {what is done: (requests that fail, how it is done, what it returns, what is there afterwards)}
CALLS: dict[str, tuple[str, Callable[[str], object], object, dict[str, bytes]]] = {
    "read": ("get", lambda root: STORAGE.read(f"{root}/x"), DATA, XY),
    "read, pinned": (
        "get",
        lambda root: STORAGE.read(f"{root}/x", version=stat(f"{root}/x").version),
        DATA,
        XY,
    ),
    "list": ("list", lambda root: [file.path for file in STORAGE.list(root)], ["x", "y"], XY),
    "replace": ("insert", lambda root: STORAGE.replace(f"{root}/y", DATA), None, {**XY, "y": DATA}),
    "swap": ("insert", lambda root: swap_twice(f"{root}/new"), True, {**XY, "new": b"second"}),
    "renew": ("rewrite", lambda root: renew(f"{root}/x"), True, XY),
    "copy": ("rewrite", lambda root: copy(f"{root}/x"), True, {**XY, "new": DATA}),
    "delete": ("delete", lambda root: STORAGE.delete(f"{root}/x"), True, {"y": b"old"}),
    "delete many": ("delete", lambda root: STORAGE.delete_many(STORAGE.list(root)), True, {}),
    **{
        f"rename, {kind}": (
            kind,
            lambda root: STORAGE.rename(f"{root}/x", f"{root}/new"),
            None,
            {"y": b"old", "new": DATA},
        )
        for kind in ("get", "rewrite", "delete")
    },
    **{
        f"rename over, {kind}": (
            kind,
            lambda root: rename_over(f"{root}/x", f"{root}/y"),
            None,
            {"y": DATA},
        )
        for kind in ("get", "rewrite", "delete")
    },
}


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        pytest.param(
            name,
            fault,
            marks=[
                # A third of them: each call, and each fault.
                *([] if (row + column) % 3 == 0 else [pytest.mark.slow]),
                # An answer that takes more than a second is asked for again, and counted.
                *([pytest.mark.timing] if fault == "hang" else []),
            ],
        )
        for row, name in enumerate(CALLS)
        for column, fault in enumerate(FAULTS)
    ],
)
def test_what_fails_is_repeated(name: str, fault: Fault, gcs: ProxiedGcs, bucket: str) -> None:
    kind, call, result, left = CALLS[name]
    gcs.write_tree(bucket, XY)
    faults = [fault] * (1 if fault == "hang" else 3)
    gcs.proxy.decide = fail(kind, faults)
    before = usage_counter.total()
    assert call(bucket) == result
    usage = usage_counter.total() - before
    assert usage.throttled == (len(faults) if fault in THROTTLED else 0)
    if name == "read":
        assert gcs.proxy.counts() == {"get": 1 + len(faults)}
        assert usage.repeated == len(faults)
    assert gcs.read_tree(bucket) == left


def test_a_page_in_the_middle_of_a_listing_is_repeated(
    gcs: ProxiedGcs, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_storage, "PAGE_SIZE", 2)
    monkeypatch.setattr(failures, "TIMEOUT_S", (1.0, 1.0))
    paths = [f"{folder}/{name}" for folder in "abcd" for name in "12345"]
    # Consoles make the others, for folders.
    gcs.write_tree(f"{bucket}/in", dict.fromkeys([*paths, "", "b/", "e/"], b""))
    gcs.proxy.decide = fail("list", [None, "503", "reset", None, None, *FAULTS, None, "closed"])
    assert sorted(file.path for file in STORAGE.list(f"{bucket}/in")) == paths


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("kind", [pytest.param("insert", marks=pytest.mark.slow), "upload"])
def test_long_uploads_are_repeated_or_begun_anew(
    fault: Fault, kind: str, gcs: ProxiedGcs, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_storage, "PART_BYTES", PART)
    data = DATA * 1000
    before = usage_counter.total()
    for nth in range(len(data) // PART + 1):
        gcs.proxy.reset()
        gcs.proxy.decide = fail(kind, [*[None] * nth, fault])
        for attempt in range(3):
            try:
                with STORAGE.create(f"{bucket}/{kind}-{nth}-{attempt}") as file:
                    for start in range(0, len(data), 1000):
                        file.write(data[start : start + 1000])
            except WriteFailedError:
                continue
            break
        tree = {name: body for name, body in gcs.read_tree(bucket).items() if f"-{nth}-" in name}
        # A failed upload leaves nothing, and certainly not a part.
        assert tree == {f"{kind}-{nth}-{attempt}": data}
        if kind == "insert":
            break
    usage = usage_counter.total() - before
    assert usage.throttled == (usage.repeated if fault in THROTTLED else 0)


def test_what_did_not_arrive_as_it_was_sent_is_sent_again() -> None:
    for message, again in (
        ('Provided CRC32C "a==" doesn\'t match calculated CRC32C "b==".', True),
        ("Bucket is a requester pays bucket but no user project provided.", False),
    ):
        assert client.is_transient(BadRequest(message)) is again


def test_an_object_of_another_run_is_not_taken_for_ours(gcs: ProxiedGcs, bucket: str) -> None:
    gcs.write(f"{bucket}/new", b"other")
    with pytest.raises(FileExistsError), STORAGE.create(f"{bucket}/new") as file:
        file.write(DATA)
    assert gcs.read(f"{bucket}/new") == b"other"


def create(uri: str, *, size_bytes: int) -> None:
    with STORAGE.create(uri) as file:
        file.write(bytes(size_bytes))


# {how an object is uploaded on condition that nothing is there: (the call, requests that fail)}
NEW_OBJECTS: dict[str, tuple[Callable[[str], object], str]] = {
    "swap": (lambda uri: STORAGE.swap(uri, b"new", version=None), "insert"),
    "a small file": (lambda uri: create(uri, size_bytes=10), "insert"),
    "a long file, its beginning": (lambda uri: create(uri, size_bytes=PART + 1), "insert"),
    "a long file, its end": (lambda uri: create(uri, size_bytes=PART + 1), "upload"),
}


@pytest.mark.parametrize("name", NEW_OBJECTS)
def test_an_upload_refused_because_of_nothing_is_an_error(
    name: str, gcs: ProxiedGcs, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gcs_storage, "PART_BYTES", PART)
    call, kind = NEW_OBJECTS[name]
    gcs.proxy.decide = fail(kind, ["412"] * 9)
    with pytest.raises(
        InputError, match=r"/new: .* because the object exists \(412\), but it does not"
    ):
        call(f"{bucket}/new")
    # The caller writes a long file again under another name.
    assert gcs.proxy.counts()[kind] == (1 if name.startswith("a long file") else 2)
    assert gcs.read_tree(bucket) == {}


@pytest.mark.parametrize("name", ["swap", "a small file"])
def test_an_upload_refused_because_of_nothing_is_repeated_once(
    name: str, gcs: ProxiedGcs, bucket: str
) -> None:
    call, kind = NEW_OBJECTS[name]
    gcs.proxy.decide = fail(kind, ["412"])
    call(f"{bucket}/new")
    assert gcs.names(bucket) == ["new"]
    # The object is gone, so the answer is right, and nothing is repeated.
    gcs.proxy.reset()
    assert STORAGE.swap(f"{bucket}/gone", b"", version="7") is None
    assert gcs.proxy.counts()["insert"] == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_a_swap_does_not_take_the_work_of_others_for_its_own(
    fault: Fault, gcs: ProxiedGcs, bucket: str
) -> None:
    first = STORAGE.swap(f"{bucket}/new", b"first", version=None)
    assert STORAGE.swap(f"{bucket}/new", b"other", version=first) is not None
    gcs.proxy.decide = fail("insert", [fault] * 2)
    assert STORAGE.swap(f"{bucket}/new", b"again", version=first) is None
    assert STORAGE.swap(f"{bucket}/new", b"again", version=None) is None
    assert gcs.read(f"{bucket}/new") == b"other"


def test_what_was_replaced_meanwhile_is_not_deleted(gcs: ProxiedGcs, bucket: str, x: str) -> None:
    def replace(request: Request) -> None:
        if request.kind == "delete":
            gcs.write(x, b"other")

    gcs.proxy.decide = replace
    assert not STORAGE.delete_many(STORAGE.list(bucket))
    STORAGE.rename(x, f"{bucket}/y")
    assert gcs.read_tree(bucket) == {"x": b"other", "y": b"other"}


@pytest.mark.parametrize("fault", ["503", "closed", "hang", "corrupt"])
def test_a_deadline_passed_is_an_error_in_one_line(
    fault: Fault, gcs: ProxiedGcs, bucket: str, x: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored = stat(x)
    monkeypatch.setattr(failures, "DEADLINE_S", 0.2)
    monkeypatch.setattr(failures, "TIMEOUT_S", (0.2, 0.2))
    gcs.proxy.decide = lambda request: fault
    calls: list[Callable[[], object]] = [
        lambda: STORAGE.read(x, version=stored.version),
        lambda: list(STORAGE.list(bucket)),
        lambda: STORAGE.stat(x),
        lambda: STORAGE.replace(x, DATA),
        lambda: STORAGE.delete(x),
    ]
    # The answer to an upload or a deletion may be damaged, and all the same well understood.
    for call in calls[:3] if fault == "corrupt" else calls:
        with pytest.raises(InputError) as caught:
            call()
        assert str(caught.value).startswith(bucket)
        assert "no answer from Google Cloud Storage within 0 s (last: " in str(caught.value)
        assert "\n" not in str(caught.value)


def test_nobody_listening_is_an_error(
    gcs: ProxiedGcs, x: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failures, "DEADLINE_S", 0.2)
    # Port 9 is for throwing things away, and nobody does so here.
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "http://127.0.0.1:9")
    with pytest.raises(InputError, match=r"no answer .* Connection refused"):
        STORAGE.read(x)


@pytest.mark.parametrize(
    ("kind", "call", "permission", "role"),
    [
        ("get", lambda uri: STORAGE.read(uri), "storage.objects.get", "objectViewer"),
        ("get", lambda uri: STORAGE.stat(uri), "storage.objects.get", "objectViewer"),
        ("list", lambda uri: list(STORAGE.list(uri)), "storage.objects.list", "objectViewer"),
        ("insert", lambda uri: STORAGE.replace(uri, b""), "storage.objects.create", "objectUser"),
        ("rewrite", lambda uri: STORAGE.rename(uri, f"{uri}2"), "objects.create", "objectUser"),
        ("delete", lambda uri: STORAGE.delete(uri), "storage.objects.delete", "objectUser"),
    ],
)
@pytest.mark.parametrize("status", ["401", "403"])
def test_denied_access_names_object_permission_and_fix(
    status: str,
    kind: str,
    call: Callable[[str], Any],
    permission: str,
    role: str,
    gcs: ProxiedGcs,
    x: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gcs.proxy.decide = fail(kind, [status])
    with pytest.raises(InputError) as caught:
        call(x)
    message = str(caught.value)
    assert message.startswith(x)
    assert permission in message
    assert x.split("/")[2] in message
    if status == "403":
        assert f"grant roles/storage.{role} on the bucket" in message
    else:
        assert "gcloud auth application-default login" in message
    # At once: repeating it helps nobody.
    assert gcs.proxy.counts()[kind] == 1
    monkeypatch.setenv(ANONYMOUS_VARIABLE, "1")
    gcs.proxy.decide = fail(kind, ["401"])
    with pytest.raises(InputError, match="is not public; run without --anonymous"):
        call(x)


def test_a_bucket_that_is_not_there_is_an_error(gcs: ProxiedGcs, x: str) -> None:
    uri = "gs://there-is-no-such-bucket/x"
    for call in (
        lambda: list(STORAGE.list(uri)),
        lambda: STORAGE.replace(uri, b""),
        # Images do not become rejects with their bucket.
        lambda: STORAGE.read(uri, version="1"),
    ):
        with pytest.raises(InputError, match="there is no bucket 'there-is-no-such-bucket'"):
            call()


def test_an_address_without_a_bucket_is_an_error(gcs: ProxiedGcs) -> None:
    for uri in ("gs://", "gs:///x"):
        with pytest.raises(InputError, match="expected gs://BUCKET/NAME"):
            list(STORAGE.list(uri))


def test_no_credentials_is_an_error_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(scopes: object) -> None:
        raise auth_exceptions.DefaultCredentialsError("none")

    monkeypatch.delenv("STORAGE_EMULATOR_HOST", raising=False)
    monkeypatch.setattr("google.auth.default", refuse)
    client._make_client.cache_clear()
    with pytest.raises(InputError, match=r"gcloud auth application-default login.*--anonymous"):
        STORAGE.read("gs://bucket/x")
    # With anonymous access, no credentials are looked for.
    monkeypatch.setenv(ANONYMOUS_VARIABLE, "1")
    assert isinstance(client.gcs_client()._credentials, google_credentials.AnonymousCredentials)
    client._make_client.cache_clear()


def test_objects_compressed_by_the_storage(gcs: ProxiedGcs, bucket: str) -> None:
    """The test server cannot store compressed objects, so the test compresses its answer."""
    import gzip

    assert objects.unpack(gzip.compress(DATA), uri=bucket, pinned=False) == DATA
    with pytest.raises(OSError, match="Content-Encoding: gzip"):
        objects.unpack(gzip.compress(DATA), uri=bucket, pinned=True)
    with pytest.raises(InputError, match="has more than 9 bytes"):
        objects.unpack(gzip.compress(DATA), uri=bucket, pinned=False, max_bytes=9)
    with pytest.raises(InputError, match="not gzip data"):
        objects.unpack(b"{}", uri=bucket, pinned=False)


def test_listings_hold_files_only(gcs: ProxiedGcs, bucket: str) -> None:
    gcs.write_tree(bucket, {"folder/": b"", "folder/x": b"1"})
    assert [file.path for file in STORAGE.list(bucket)] == ["folder/x"]
    assert [file.path for file in STORAGE.list(f"{bucket}/folder")] == ["x"]


def test_the_proxy_enforces_what_the_server_does_not(gcs: ProxiedGcs, x: str) -> None:
    """Else the tests above would show nothing."""
    from google.api_core.exceptions import PreconditionFailed

    blob = objects.blob_of(x)
    for call in (
        lambda: blob.delete(if_generation_match=1),
        lambda: objects.blob_of(f"{x}2").rewrite(blob, if_source_generation_match=1),
    ):
        with pytest.raises(PreconditionFailed):
            call()
    assert gcs.names(x.rpartition("/")[0]) == ["x"]

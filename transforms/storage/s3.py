"""Storage in Amazon S3 and in servers that speak its protocol (`s3://bucket/name`), with s3fs."""

from __future__ import annotations

from shardbeam.transforms.core.errors import InputError
from shardbeam.transforms.storage.base import ListingPart
from shardbeam.transforms.storage.fsspec import FsspecStorage, file_system, stored_file
from shardbeam.transforms.storage.object_listing import PAGE_SIZE, ObjectStorage, Page


class S3Storage(ObjectStorage, FsspecStorage):
    """Objects below a prefix, seen as files in folders. s3fs would hold all names of a listing."""

    def __init__(self) -> None:
        super().__init__("s3")

    def list_page(self, part: ListingPart, *, folder: str = "", deep: bool = True) -> Page:
        """Makes one request for names."""
        root = part.root.rstrip("/")
        system, path = file_system(root)
        bucket, key, _ = system.split_path(path)
        prefix = f"{key}/" if key else ""
        request = {"Bucket": bucket, "Prefix": f"{prefix}{folder}", "MaxKeys": PAGE_SIZE}
        if not deep:
            request["Delimiter"] = "/"
        if part.token:
            request["ContinuationToken"] = part.token
        elif part.start:
            request["StartAfter"] = f"{prefix}{part.start}"
        try:
            found = self._attempt(
                lambda: system.call_s3("list_objects_v2", **request), uri=f"{root}/{folder}"
            )
        except FileNotFoundError as error:
            if part.start or part.token:
                raise InputError(uri=root, problem="was deleted while it was listed") from error
            return Page([], [], "")
        files = [
            stored_file(
                {**info, "size": info["Size"]},
                path=info["Key"][len(prefix) :],
                uri=f"{root}/{info['Key'][len(prefix) :]}",
            )
            for info in found.get("Contents", [])
            if info["Key"] != prefix
        ]
        folders = [each["Prefix"][len(prefix) :] for each in found.get("CommonPrefixes", [])]
        token = found["NextContinuationToken"] if found.get("IsTruncated") else ""
        return Page(files, folders, token)


STORAGE = S3Storage

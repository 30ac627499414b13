"""Files on disk, in object storage and inside archives."""

"""Google Cloud Storage, by `google-cloud-storage`."""

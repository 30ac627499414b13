"""The staging area of a build, and the locks and leases on its output."""

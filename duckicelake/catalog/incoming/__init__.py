"""What a commit makes ready before the lock: the client's manifests, read and compared, and the delete files that follow."""

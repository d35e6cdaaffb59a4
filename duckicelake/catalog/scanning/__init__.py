"""Scans that are planned here: from the manifests that were published, for clients that do not read them."""

"""Manifests that others made and the catalog took over."""

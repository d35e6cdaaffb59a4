"""Manifests that executors of Spark make: what there is to make, and taking it over."""

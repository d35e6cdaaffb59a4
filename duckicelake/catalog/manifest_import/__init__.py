"""Manifests that Spark executors write: plans of what to write, and the verification and import of the result."""

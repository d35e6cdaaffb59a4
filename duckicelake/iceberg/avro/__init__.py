"""Avro files of Iceberg: a writer and a reader of Avro, and manifests and manifest lists in both directions."""

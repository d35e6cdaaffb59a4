"""Avro files of Iceberg: a writer and a reader of Avro, and the schemas, encoders and decoders of manifests and manifest lists."""

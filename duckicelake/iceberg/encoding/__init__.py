"""The kits below the format: reading JSON with checks, writing Avro, single values as JSON."""

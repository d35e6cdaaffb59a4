"""What clients send, as the OpenAPI page shows it: JSON schemas. The readers in `iceberg` decide; tests hold both together."""

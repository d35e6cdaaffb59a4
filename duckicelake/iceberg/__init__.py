"""The Iceberg format as values, JSON and bytes: pure functions without I/O, clock or randomness.

`catalog`, `rest`, `translate`, `pipeline` and `pyiceberg_v3` use it; they do the I/O. Read in this order:
  types, schema             columns: ids, names, types, defaults
  transforms, partition     partition specs, the values of their transforms, and sort orders
  single_values             values of one type as bytes, bounds and JSON
  snapshots, metadata       the history of a table and its metadata.json
  view_metadata             the versions of a view and its metadata.json
  manifest, manifest_list   the values in manifests and manifest lists, and their encoders
  avro/                     the Avro files themselves: writer, reader, schemas, and decoders for files of any writer
  puffin                    deletion vectors and the Puffin files that carry them
  requests/                 bodies of REST requests: updates, requirements, and the metadata after them
  scan_filters, scan_pruning, scan_tasks   server-side scan planning: filters, pruning, plan ids, delete files
  json_reader               checked reading of JSON, used by all of them

Values are plain Python everywhere (an *iceberg value*): `single_values` says which Python type holds which Iceberg type.
"""

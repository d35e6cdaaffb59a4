"""The format: Apache Iceberg as JSON and bytes. No IO and no clock; what goes in decides what comes out.

Read in this order:
  types, schema            columns: ids, names, types, defaults
  partition, sorting       how rows are split and ordered; `transforms` computes, `bounds` makes bytes of values
  snapshots, metadata      a table's history and its metadata.json
  manifest, manifest_list  the Avro files that list data files and manifests
  deletion_vector, puffin  deleted rows as bitmaps, and the file that carries them
  views/                   a view's versions and its metadata
  requests/                what clients ask for: updates and requirements, and a table's metadata after them
  decoding/                anybody's Avro files: manifests and manifest lists as clients write them
  encoding/                below all of these: checked JSON reading, an Avro writer, JSON values

Values are plain Python everywhere (an *iceberg value*): `bounds` says which for which type.
"""

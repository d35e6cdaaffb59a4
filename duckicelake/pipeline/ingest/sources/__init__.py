"""What `ingest` takes rows from.

Reading order: reading (what all sources have in common) · listing (files that the ledger does not know) · s3 · avro · looks (what texts
look like) · files (how they are read) · columns (which ones they bring) · jdbc (databases).
"""

"""What `ingest` takes rows from.

Reading order: reading (what all sources have in common) · listing (files that the ledger does not know) · s3 · avro · files (how they are
read) · columns (which ones they bring) · jdbc (databases).
"""

"""THE BRIDGE, pure: where DuckLake's rows and Iceberg's format meet.

types (columns → schema) · values (texts → Iceberg values) · partitions · locations (paths → URIs) · history (rows →
what each snapshot changed) · manifests (changes → manifests) · files (rows → data files) · shape (sort orders, name mapping) ·
views (SQL, parsed only) · to_iceberg (all → metadata).
"""

"""DuckLake's macros as Iceberg's SQL functions.

macros (rows to values) · environment (the statements that make a macro known to DuckDB) · binder (a process of its own, in which DuckDB
tells result types and runs nothing) · definitions (macros and result types to a function's metadata).
"""

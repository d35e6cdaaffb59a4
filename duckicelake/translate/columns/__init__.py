"""DuckLake's file statistics column by column: a manifest may name thousands of files."""

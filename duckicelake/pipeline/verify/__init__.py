"""`verify`: a table as Iceberg and as DuckLake, row by row, and its files against what is said of them."""

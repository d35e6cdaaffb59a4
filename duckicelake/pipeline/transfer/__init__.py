"""`import` and `export`: whole catalogs, table by table, each of them made known in one act or not at all."""

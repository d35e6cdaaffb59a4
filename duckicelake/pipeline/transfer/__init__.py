"""The jobs `import` and `export`: whole catalogs, table by table. Each table becomes visible in one commit, or not at all."""

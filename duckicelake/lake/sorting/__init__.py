"""How DuckDB sorts what it writes: DuckLake's rows, as commits change them."""

"""Views: loading (list, exists, load) · columns (what a DuckDB view's text says) · changes (create, replace, rename, drop)."""

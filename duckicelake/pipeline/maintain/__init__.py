"""The job `maintain`: flush, compact, expire and remove files of a lake, planned from DuckLake's catalog while others keep writing."""

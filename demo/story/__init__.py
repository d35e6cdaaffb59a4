"""A small lakehouse told as a story: Spark takes raw files in, DuckDB's users correct them, and everybody reads the same.

Run it: `scripts/demo`, or chapter by chapter in `story.ipynb`. Reading order: telling, raw, house, chapters, __main__.
"""

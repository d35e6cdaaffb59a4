"""Real data through the whole road: DuckDB fills a lake with the flights out of New York in 2013, other engines read it.

Run it: `python -m demo`. Reading order: flights, server, load, questions, read, report, __main__. `story` is another way through it:
the same data in the hands of Spark, DuckDB's users and PyIceberg, from raw files to gold.
"""

"""Benchmarks: CPU-milliseconds per request, growth, memory. `python -m bench` prints them and writes JSON.

accounting (CPU and memory from /proc) · statistics · requests (the load generator) · stand (the servers under test) · seed (DuckLake's
rows by the thousand) · loads (one load, measured) · cached, growth, idle, commits/ (the benchmarks) · scale · report.
"""

"""What commits cost.

client (one that prepares its manifests beforehand) · costs (commits, measured) · kinds, writers, contention, big (the benchmarks) ·
limits (what must hold of all benchmarks).
"""

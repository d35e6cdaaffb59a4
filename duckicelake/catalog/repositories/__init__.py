"""A lake with its branches, as REST shows it: logs, differences and merges."""

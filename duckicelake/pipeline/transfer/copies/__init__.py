"""Copies beside the tables that they become: their rows compared, and what is left of those that never became known."""

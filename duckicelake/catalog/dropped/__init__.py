"""Dropped tables and namespaces: what protects them, how long they stay, and how they come back."""

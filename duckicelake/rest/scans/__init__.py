"""Scans that are planned here, at the door."""

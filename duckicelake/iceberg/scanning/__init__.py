"""Scans that are planned here: what a client asks for, which deletes count, how files are told, and where a plan goes on."""

"""The quarantine of a table: rows that could not be taken."""

"""The keys: who may do what. Decisions as values; nothing here knows HTTP, SQL or a clock of its own."""

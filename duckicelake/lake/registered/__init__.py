"""Tables that came from another catalog, or went to one: rows and notes of their own, beside those of every commit."""

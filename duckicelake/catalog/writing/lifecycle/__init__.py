"""Tables that go and come back: what a purge removes, and what a registration finds again."""

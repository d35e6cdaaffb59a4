"""THE VERBS: one function per REST operation, no HTTP, no SQL. Only this room holds the lake and the store at once."""

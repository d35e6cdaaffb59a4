"""Keys at the command line: what stores make of those that are vended, and whose credential a command shows."""

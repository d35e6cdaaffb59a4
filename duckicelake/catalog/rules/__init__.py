"""Who may do what in a lake: read as values, and changed."""

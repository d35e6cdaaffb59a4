"""Keys for others: what a session of the store may do, and the service that gives sessions."""

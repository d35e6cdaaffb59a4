"""What goes to Postgres and comes from it in masses."""

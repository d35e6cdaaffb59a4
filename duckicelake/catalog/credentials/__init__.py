"""Keys for one table: where its files lie, and what a principal gets for them."""

"""What keys for single tables are cut from."""

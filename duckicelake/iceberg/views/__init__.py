"""Views: what a view's metadata says, and how updates change it."""

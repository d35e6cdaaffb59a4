"""Principals, roles and grants as rows beside the lake's own: read, and changed so that every server learns of it."""

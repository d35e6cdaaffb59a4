"""REST requests that create or change tables and views: bodies, updates, requirements, checks, and the metadata afterwards."""

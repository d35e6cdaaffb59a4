"""Who did what, and who was denied what: a line for each, beside the lake's rows."""

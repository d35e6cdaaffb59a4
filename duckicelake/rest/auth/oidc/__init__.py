"""Issuers of tokens: their keys, fetched beside the event loop and kept; whose a token of theirs is."""

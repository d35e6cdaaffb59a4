"""Credentials for clients: vended temporary credentials, remote signing, and a check of the store's isolation."""

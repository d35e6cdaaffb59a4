"""Server-side scan planning from the published manifests, for clients that do not read manifests."""

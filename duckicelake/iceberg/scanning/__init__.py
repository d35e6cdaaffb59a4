"""Server-side scan planning: filters, pruning of manifests and files, delete files, and plan ids. `catalog.scanning` uses it."""

"""The client's manifests of a commit, read before the lake's lock and compared with the table's, and the files that follow from them."""

"""Row ids inside data files, which Iceberg lets a file leave open."""

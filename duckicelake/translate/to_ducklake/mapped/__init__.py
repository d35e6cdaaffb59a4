"""Files without field ids: their columns are found by names, in the files and in those of the folders that they lie in."""

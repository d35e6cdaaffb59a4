"""One module per kind of thing: each method answers one operation of the specification."""

"""What DuckLake's rows say of the least and greatest values of columns, as commits change it."""

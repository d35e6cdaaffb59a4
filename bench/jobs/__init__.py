"""The pipeline's jobs, each beside what Spark alone does with the same rows, in one process and one run."""

"""The guests: Spark, and the jobs it runs; they write through REST like any other client."""

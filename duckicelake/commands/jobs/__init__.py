"""The commands of jobs on Spark, each a module."""

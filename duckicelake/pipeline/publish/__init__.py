"""The job `publish`: manifests of tables with very many files, made by Spark's executors and taken over by the catalog."""

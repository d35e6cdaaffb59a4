"""The job `publish`: Spark's executors write the manifests of tables with very many files, and the catalog adopts them."""

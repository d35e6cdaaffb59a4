"""Shared parts of the jobs: Spark sessions, the REST client, stores, staging branches, reports and messages of failures."""

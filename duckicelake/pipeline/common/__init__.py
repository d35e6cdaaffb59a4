"""What all jobs share: Spark sessions, the REST client, stores, staging branches, reports and messages of failures."""

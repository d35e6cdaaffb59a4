"""Authentication, the permission table, credential delegation and the audit log's entries for denied requests."""

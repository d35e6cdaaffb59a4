"""What stops a job, in words for people: nothing that is secret, and no trace."""

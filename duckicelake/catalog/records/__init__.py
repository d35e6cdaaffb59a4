"""Records of requests that change nothing: the audit of reads, and the metrics reports of clients."""

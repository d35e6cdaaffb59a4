"""What requests leave behind that change nothing: reads, and the metrics reports of clients."""

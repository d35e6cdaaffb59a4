"""Objects by URI, the Parquet files derived from a lake's rows, and credentials for clients."""

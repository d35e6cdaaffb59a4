"""THE FILES: objects by URI, and the Parquet files we derive from a lake's rows."""

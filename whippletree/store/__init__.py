"""The durable record: metadata in SQLite, payloads in segments."""

"""Live terminal panel and reports."""

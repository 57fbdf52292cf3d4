"""Harbor task directories, verifiers and task generators."""

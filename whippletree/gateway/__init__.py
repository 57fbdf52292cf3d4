"""The model boundary: a harness's HTTP requests in, recorded token-level calls and replies in the harness's dialect out."""

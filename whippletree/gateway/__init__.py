"""The model boundary: dialects, keys, admission, recording."""

"""Pure converters between a dialect and the internal form."""

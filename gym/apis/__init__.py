"""Wire schemas and conversions of the model APIs."""

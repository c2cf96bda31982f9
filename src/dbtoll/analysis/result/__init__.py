"""What result.json says, and how it is put together."""

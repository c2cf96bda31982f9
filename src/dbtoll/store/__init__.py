"""The run folder (docs/SCHEMA.md): the only interface between measuring and analysing."""

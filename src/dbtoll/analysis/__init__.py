"""From a run folder to what may be said about it (docs/METHOD.md). Pure: reads `store`, writes nothing."""

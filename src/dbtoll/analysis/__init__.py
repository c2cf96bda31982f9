"""From a run folder to what may be said about it (docs/method/). Pure: reads `store`, writes nothing."""

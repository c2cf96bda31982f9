"""Which numbers enter an analysis: valid visits, and the metrics that are made of them."""

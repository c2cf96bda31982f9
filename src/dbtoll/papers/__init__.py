"""The papers that are set beside what is measured here: one folder for each (docs/adding/paper.md), and nothing else."""

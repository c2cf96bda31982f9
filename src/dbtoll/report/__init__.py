"""The last step: a Result as text, tables, one HTML file and files for other tools. Computes nothing (DESIGN §3)."""

"""Figures and verdicts in plain words: the one place where a number becomes text, for terminal, page and pictures.

Nothing here decides a verdict: the analysis did.
"""

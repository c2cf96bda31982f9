"""How good are ledgers and predictions?"""

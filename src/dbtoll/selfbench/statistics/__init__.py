"""Are the intervals right?"""

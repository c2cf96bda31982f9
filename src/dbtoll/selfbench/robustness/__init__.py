"""What survives?"""

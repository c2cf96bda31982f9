"""What does the instrument cost?"""

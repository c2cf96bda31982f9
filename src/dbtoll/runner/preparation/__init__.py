"""What is made once, before the first round."""

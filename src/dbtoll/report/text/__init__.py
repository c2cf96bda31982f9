"""What a report says in words: numbers, names, sentences, warnings."""

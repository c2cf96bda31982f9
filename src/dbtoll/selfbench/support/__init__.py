"""What several properties need to be measured."""

"""A machine as its agent shows it: files, programs, sessions, terminals, facts."""

"""What each command does: where measuring, analysing and reporting are joined."""

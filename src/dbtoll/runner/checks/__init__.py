"""What a start must prove before it counts: where commits end, by which paths the server is reached."""

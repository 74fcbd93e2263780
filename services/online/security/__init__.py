"""Who may call the server, and over which connections: tokens and TLS."""

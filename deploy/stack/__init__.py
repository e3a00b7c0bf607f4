"""The stack of docker-compose.yml without containers: its command lines, run directly on loopback ports."""

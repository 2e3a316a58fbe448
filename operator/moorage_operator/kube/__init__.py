"""The `Cluster` port on the official asynchronous client."""

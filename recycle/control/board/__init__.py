"""What members write in the store, by meaning."""

"""What reaches under torch's gloo."""

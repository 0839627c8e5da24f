"""What the metrics of all processes say, for people."""

"""A load test with locust: people who chat, services that call natively, and an operator who rolls a version out."""

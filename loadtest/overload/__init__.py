"""What the benches and drills of an overloaded mesh share: load, records, setting, timeline (loadtest/README.md)."""

"""The worker's decisions: what may run, what a slow reader gets. Pure: no grpc, no asyncio, no generated code."""

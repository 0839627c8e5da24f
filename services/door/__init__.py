"""The door: etcd as the services see it that may write a few keys of their own, and nothing else."""

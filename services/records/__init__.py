"""The store of records: requests and usage, out of the audit log into a database; see README.md."""

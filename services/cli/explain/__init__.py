"""`weir tenants explain`: `tenant` decides what the services' answers mean, `show` prints it."""

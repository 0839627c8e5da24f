"""`weir tenants explain`: `gather` asks the services, `tenant` decides what their answers mean, `show` prints it."""

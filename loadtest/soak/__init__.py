"""`make soak`: faults at random over the replicas profile under mixed load, and books kept from outside."""

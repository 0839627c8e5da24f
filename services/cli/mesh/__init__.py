"""The mesh on this machine: planned from deploy/, started under libs.supervisor, shown, stopped."""

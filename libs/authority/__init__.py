"""Who may do what, in one place: identities, stores, calls, models, operators."""

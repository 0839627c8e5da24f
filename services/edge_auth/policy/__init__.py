"""Pure decisions about credentials: what a path needs, what a key or a token's claims allow."""

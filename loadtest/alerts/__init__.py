"""Each alert of deploy/alerts, provoked by a real fault in a mesh: see __main__.py."""

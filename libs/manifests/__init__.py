"""A described mesh of containers (what `weir render` prints) as files for orchestrators: bin/compose-file and
bin/k8s-manifests write them. Pure."""

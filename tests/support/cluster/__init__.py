"""Runs what `kustomize build` prints on a Docker engine. A test's tool and no Kubernetes: it knows the kinds and fields
that k8s/ uses, does with them what kubelet, kube-proxy, a network plug-in and cert-manager's CSI driver would, and
refuses what it does not know. There is no API server, no admission, no scheduler, no autoscaler and one node.

    objects.py    what the manifests say: selectors, variables, environment, fields that it knows      (pure)
    rules.py      network policies and services as iptables rules for one pod                         (pure)
    csi.py        a pod's certificate, by the attributes of its volume                                (pure)
    volumes.py    volumes as folders
    node.py       pods as containers: sandbox, container, probes, the end
    cluster.py    workloads: start, replace, wait
"""

"""The life of a service process, the same for all: settings → logs → traces → server → health → endpoint → drain.

    # services/<name>/__main__.py
    from libs.service import main
    main(Settings, build)

`build(settings)` is the service's composition root and returns a `Service`.
"""

from libs.service.process import Builder, Listening, Ready, Service, Waiting, main, serve

__all__ = ["Builder", "Listening", "Ready", "Service", "Waiting", "main", "serve"]

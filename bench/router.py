"""Runs a router: ROUTER_PACKAGE PORT METRICS_PORT WORKER_URL..., as its own command does, whose other requirements are not needed."""
import importlib
import sys

package, port, metrics_port, workers = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
arguments = importlib.import_module(package + ".router_args").RouterArgs
router = importlib.import_module(package + ".router").Router
router.from_args(
    arguments(
        host="127.0.0.1",
        port=port,
        worker_urls=workers,
        policy="cache_aware",
        log_level="warn",
        prometheus_host="127.0.0.1",
        prometheus_port=metrics_port,
    )
).start()

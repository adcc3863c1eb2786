"""The engine: a Docker-compatible daemon. This package alone imports the Docker SDK."""

from envlock.engine.buildcontext import BuildContext
from envlock.engine.buildkit import ImageBuilt
from envlock.engine.client import Engine, EngineInfo, connect
from envlock.engine.containers import Bind, Container, Executed, Execution, Gpus
from envlock.engine.endpoint import Endpoint
from envlock.engine.images import EngineImage
from envlock.engine.loading import Loaded, temporary_name
from envlock.engine.wire import Output

__all__ = [
    "Bind",
    "BuildContext",
    "Container",
    "Endpoint",
    "Engine",
    "EngineImage",
    "EngineInfo",
    "Executed",
    "Execution",
    "Gpus",
    "ImageBuilt",
    "Loaded",
    "Output",
    "connect",
    "temporary_name",
]

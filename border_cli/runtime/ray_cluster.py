"""The connection to a Ray cluster (https://www.ray.io), for what runs there. The only module that imports Ray."""

from __future__ import annotations

import importlib
import logging
import math
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

from border_cli.core.errors import UsageError
from border_cli.runtime.stopping import handlers_restored

_OBJECT_STORE_BYTES = 512 << 20
"""Of a cluster that a run starts for itself: some versions of a model, and chunks on their way."""


class Cluster:
    """The connection to a cluster, or a cluster of this command's own.

    Args:
        key: the option that holds the address, for messages.
        address: "local", a cluster of this command's own, which ends with it · "auto", one that runs on this machine or
            that RAY_ADDRESS names · "ray://<host>:<port>".
        cpus: of a cluster of this command's own. Ray starts a worker for each at once.

    Raises UsageError if there is no cluster at the address.
    """

    def __init__(self, key: str, address: str, cpus: int) -> None:
        self.ray: Any = importlib.import_module("ray")
        self._ours = not self.ray.is_initialized()
        if not self._ours:  # the program that uses us has connected already
            return
        local = {"num_cpus": cpus, "object_store_memory": _OBJECT_STORE_BYTES, "include_dashboard": False}
        options = local if address == "local" else {}
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        logging.getLogger("ray").setLevel(logging.ERROR)
        # Ray's own handlers would end the command at once, without a checkpoint.
        with handlers_restored(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what matters of them is in the error
            try:
                self.ray.init(address=address, log_to_driver=False, configure_logging=False, **options)
            except Exception as e:
                raise UsageError(
                    f"{key}={address}: no Ray cluster is reachable: {brief(e)}",
                    allowed="auto (one that runs on this machine), ray://<host>:10001, or local (a new one)",
                ) from e

    @staticmethod
    def options(need: Mapping[str, float]) -> dict[str, Any]:
        """The options of a Ray actor that takes these resources ("CPU", "GPU", …)."""
        others = {name: amount for name, amount in need.items() if name not in ("CPU", "GPU")}
        return {"num_cpus": need.get("CPU", 0), "num_gpus": need.get("GPU", 0), "resources": others}

    def capacity(self, need: Mapping[str, float]) -> int:
        """How many times these resources ("CPU", "GPU", …) fit into the nodes, if nothing else used them."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        amounts = [(name, amount) for name, amount in need.items() if amount]
        times = (min(node.get(name, 0) / amount for name, amount in amounts) for node in nodes)
        return sum(math.floor(n + 1e-9) for n in times)  # 1 // 0.1 is 9

    def close(self) -> None:
        """Disconnect; a cluster of this command's own ends."""
        if self._ours and self.ray.is_initialized():
            with handlers_restored():
                self.ray.shutdown()


def brief(error: BaseException) -> str:
    """The line of an error of Ray that says what happened: the last one with an exception, or the first of all."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return [*raised[-1:], *lines, type(error).__name__][0]

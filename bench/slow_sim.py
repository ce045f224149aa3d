"""A slow simulator for the moving picture in the README: each env step waits 12 ms and uses no CPU meanwhile."""

import time
from typing import Any

import gymnasium


class Wait(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment whose step waits, like a simulator in another process or on another machine."""

    def step(self, action: Any) -> Any:
        """Wait, then step."""
        time.sleep(0.012)
        return self.env.step(action)

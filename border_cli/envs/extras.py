"""Which extra an environment needs, for the line that tells how to install it."""

from __future__ import annotations

_EXTRAS = {
    "box2d": ("LunarLander", "BipedalWalker", "CarRacing"),
    "mujoco": (
        "Ant", "HalfCheetah", "Hopper", "Humanoid", "InvertedDoublePendulum", "InvertedPendulum", "Pusher", "Reacher",
        "Swimmer", "Walker2d",
    ),
    "atari": ("ALE/", "Pong", "Breakout"),
}  # fmt: skip


def extra_of(env_id: str) -> str | None:
    """Name of our extra that brings this environment, or None."""
    for extra, names in _EXTRAS.items():
        if env_id.startswith(names):
            return extra
    return None


def install_hint(env_id: str, error: Exception | None = None) -> str:
    """A line that starts with a newline and says what to install; empty when nothing is known to help."""
    extra = extra_of(env_id)
    if extra:
        return f"\ninstall it with: pip install 'border-cli[{extra}]'"
    return f"\n{str(error).splitlines()[0]}" if error and str(error) else ""

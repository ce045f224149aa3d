"""Hydra's, OmegaConf's and YAML's complaints in our form: what is wrong, what is allowed, the nearest."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

from hydra.errors import HydraException, MissingConfigException
from omegaconf.errors import OmegaConfBaseException

from border_cli.config.suggest import nearest, nearest_line
from border_cli.config.yaml_text import YAML_ERRORS, describe
from border_cli.core.errors import UsageError

_NOISE = (
    "See https://",
    "Set the environment variable",
    "Config search path",
    "object_type=",
    "To append to",
)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """Raise UsageError for whatever goes wrong while the configuration is put together."""
    try:
        yield
    except YAML_ERRORS as e:
        raise _from_yaml(e) from e
    except MissingConfigException as e:
        raise _from_missing(e) from e
    except (OmegaConfBaseException, HydraException) as e:
        raise _from_composition(e) from e
    except (UserWarning, UnicodeDecodeError, OSError, RecursionError, ValueError) as e:
        raise UsageError(f"the configuration cannot be put together\n{_first_line(e)}") from e


@contextlib.contextmanager
def strict_search_path() -> Iterator[None]:
    """Raise the UserWarning that is all Hydra has for a folder of the search path that is not there."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


def _from_yaml(error: Exception) -> UsageError:
    mark = getattr(error, "problem_mark", None)
    where = mark.name if mark else "a configuration file"
    return UsageError(f"{where}: not valid YAML\n{describe(error)}")


def _from_missing(error: MissingConfigException) -> UsageError:
    """A file names an option that is not there."""
    path = error.missing_cfg_file or ""
    group, _, option = path.rpartition("/")
    options = list(error.options or ())
    if not group or not options:
        return UsageError(_first_line(error))
    match = nearest_line(nearest(option, options))
    return UsageError(f"{group}: there is no {option!r}\nallowed: {', '.join(options)}{match}")


def _from_composition(error: Exception) -> UsageError:
    """The most telling line, with the key it is about; the cause knows more than Hydra's wrapping."""
    cause = error.__cause__ if isinstance(error.__cause__, OmegaConfBaseException) else None
    key = getattr(cause or error, "full_key", None)
    lines = [_first_line(error)] if str(error).strip() else []
    if cause is not None:
        lines.append(_first_line(cause))
    shown = [f"{key}: {lines[-1]}"] if key and not any(key in line for line in lines) else lines
    return UsageError("the configuration cannot be put together\n" + "\n".join(dict.fromkeys(shown)))


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines()]
    telling = [line for line in lines if line and not line.startswith(_NOISE)]
    return telling[0] if telling else type(error).__name__

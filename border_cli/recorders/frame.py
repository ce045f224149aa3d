"""One picture of a run as text that fits a given width and height: pure, from one snapshot."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import RenderableType
from rich.panel import Panel
from rich.text import Text

from border_cli.core.progress import ENDED, Progress
from border_cli.recorders import figures
from border_cli.recorders.advice import WAITS, advice
from border_cli.recorders.budget import first_to_end
from border_cli.recorders.outlet import printable
from border_cli.recorders.sparkline import encodes_blocks, sparkline

_LABEL_WIDTH = 12
_NARROW = 50
"""Below this width labels are not aligned: their column would take too much of a line."""
_BORDER = 4
"""Columns of the panel's two sides, padding included."""
_PHASE_STYLES = {"training": "bold green", "done": "bold green", "stopping": "bold red", "failed": "bold red"}
_WAITS_MUCH = 0.5


@dataclass(frozen=True)
class Room:
    """What there is to draw on: columns and lines, and the encoding that characters must fit."""

    width: int = 80
    height: int = 24
    encoding: str = "utf-8"

    @property
    def ascii_only(self) -> bool:
        """Whether curves and bars have to do without block characters."""
        return not encodes_blocks(self.encoding)


def frame(progress: Progress, title: str, room: Room, cores: int | None = None) -> RenderableType:
    """The run as a panel; where that does not fit, as bare lines, the last of which may be left out.

    cores: as for `advice`. At most `room.height - 1` lines: one stays for the cursor.
    """
    if room.width > 2 * _BORDER:
        spaced = _lines(progress, room.width - _BORDER, room, cores)
        for lines in (spaced, _dense(spaced)):
            if len(lines) + 2 < room.height:
                return _panel(lines, title, room)
    bare = _dense(_lines(progress, max(1, room.width), room, cores))
    return Text("\n").join(bare[: max(1, room.height - 1)])


def _panel(lines: Sequence[Text], title: str, room: Room) -> Panel:
    return Panel(
        Text("\n").join(lines),
        title=Text(printable(title, room.encoding), "bold"),
        title_align="left",
        border_style="dim",
        box=box.ASCII if room.ascii_only else box.ROUNDED,
        width=room.width,
    )


def _dense(lines: Sequence[Text]) -> list[Text]:
    return [line for line in lines if line.plain]


def _lines(p: Progress, width: int, room: Room, cores: int | None) -> list[Text]:
    """All lines, blocks apart from each other by an empty one, none wider than `width`."""
    blocks = (
        (_phase(p, width), _budget(p, width, room)),
        (_returns(p, width, room), _evaluations(p, width, room), _best(p, width)),
        (_speed(p, width), _ratio(p, width), _sides(p, width), _replay(p, width)),
        (_advice(p, width, cores),),
    )
    lines: list[Text] = []
    for block in blocks:
        if lines:
            lines.append(Text())
        for row in block:
            lines += row
    for line in lines:
        line.truncate(width, overflow="crop")
    return lines


def _row(label: str, fields: Sequence[Text], width: int) -> list[Text]:
    """A label and its fields, on as many lines as they need; a field is never broken."""
    lead = Text.assemble((label.ljust(_LABEL_WIDTH) if width >= _NARROW else f"{label} ", "dim"))
    indent = " " * (_LABEL_WIDTH if width >= _NARROW else 2)
    lines, line = [], lead
    for i, field in enumerate(fields):
        gap = 2 if i else 0
        if i and line.cell_len + gap + field.cell_len > width:
            lines.append(line)
            line, gap = Text(indent), 0
        line.append(" " * gap).append_text(field)
    return [*lines, line]


def _phase(p: Progress, width: int) -> list[Text]:
    fields = [
        Text(p.phase, _PHASE_STYLES.get(p.phase, "bold yellow")),
        Text(figures.duration(p.seconds)),
        _figure(figures.count(p.env_steps), "env steps"),
        _figure(figures.count(p.opt_steps), "opt steps"),
    ]
    return _row("phase", fields, width)


def _budget(p: Progress, width: int, room: Room) -> list[Text]:
    budget = first_to_end(p)
    if budget is None:
        return []
    in_time = budget.unit == "s"
    limit = figures.duration(budget.limit) if in_time else f"{figures.count(budget.limit)} {budget.unit}"
    words = Text(f"{math.floor(100 * budget.fraction)}% of {limit}")  # 100% only at the end
    eta = Text.assemble(("ETA ", "dim"), (figures.duration(budget.eta_s), "bold"))
    if p.phase in ENDED:
        eta = Text()
    free = width - _LABEL_WIDTH - words.cell_len - eta.cell_len - 4
    bar = _bar(budget.fraction, free if free >= 8 else max(1, width - _LABEL_WIDTH), room.ascii_only)
    return _row("budget", [bar, words, *([eta] if eta else [])], width)


def _bar(fraction: float, width: int, ascii_only: bool) -> Text:
    full = int(fraction * width)
    done, left = ("#", "-") if ascii_only else ("━", "━")
    return Text.assemble((done * full, "green"), (left * (width - full), "bright_black"))


def _returns(p: Progress, width: int, room: Room) -> list[Text]:
    returns = p.recent_returns
    mean = sum(returns) / len(returns) if returns else None
    said = f"mean of {figures.counted(len(returns), 'episode')}" if returns else "no episode has ended"
    curve = sparkline(returns, _curve_width(width), room.ascii_only)
    return _row("return", _curve_fields(mean, curve, "cyan", said), width)


def _evaluations(p: Progress, width: int, room: Room) -> list[Text]:
    if not p.evaluations:
        return _row("evaluation", _curve_fields(None, "", "", "none so far"), width)
    at, score = p.evaluations[-1]
    curve = sparkline([value for _, value in p.evaluations], _curve_width(width), room.ascii_only)
    return _row("evaluation", _curve_fields(score, curve, "green", f"at opt step {figures.count(at)}"), width)


def _best(p: Progress, width: int) -> list[Text]:
    if p.best is None:
        return []
    at, score = p.best
    return _row("best", _curve_fields(score, "", "", f"at opt step {figures.count(at)}"), width)


def _curve_width(width: int) -> int:
    """Room for a curve beside label, figure and words."""
    return min(32, max(8, width - 46))


def _curve_fields(value: float | None, curve: str, style: str, said: str) -> list[Text]:
    fields = [Text(figures.number(value).rjust(6), "bold"), Text(curve, style), Text(said, "dim")]
    return [field for field in fields if field.plain]


def _speed(p: Progress, width: int) -> list[Text]:
    fields = [
        _figure(figures.rate(p.opt_steps_per_sec), "opt steps/s"),
        _figure(figures.rate(p.samples_per_sec), "samples/s"),
    ]
    return _row("speed", fields, width)


def _ratio(p: Progress, width: int) -> list[Text]:
    free = p.ratio_target is None and p.opt_steps > 0
    target = "none" if free else figures.number(p.ratio_target)
    fields = [
        _figure(figures.number(p.ratio_actual), "env steps per opt step"),
        Text.assemble(("target ", "dim"), (target, "bold")),
    ]
    return _row("ratio", fields, width)


def _sides(p: Progress, width: int) -> list[Text]:
    """How the two sides fare; in sync there is only one."""
    if not p.asynchronous:
        return []
    blocked = [_blocked("actors", p.actors_blocked), _blocked("learner", p.learner_blocked)]
    actors = [Text.assemble(("policy lag ", "dim"), _figure(figures.number(p.policy_lag_mean), "opt steps"))]
    if p.phase not in ENDED:  # then none is, and the table below says how each of them ended
        actors.insert(0, _alive(p))
    return _row("blocked", blocked, width) + _row("actors", actors, width)


def _alive(p: Progress) -> Text:
    missing = p.actors_alive < p.n_actors and p.phase in ("warm-up", "training")
    style = "bold red" if missing else "bold"
    return Text.assemble((f"{p.actors_alive}/{p.n_actors}", style), (" alive", "dim"))


def _blocked(who: str, value: float | None) -> Text:
    style = "bold"
    if value is not None and value >= WAITS:
        style = "bold red" if value >= _WAITS_MUCH else "bold yellow"
    return Text.assemble((f"{who} ", "dim"), (figures.share(value), style))


def _replay(p: Progress, width: int) -> list[Text]:
    fill = p.replay_size / p.replay_capacity if p.replay_capacity > 0 else None
    fields = [
        _figure(figures.share(fill), "full"),
        Text(f"{figures.count(p.replay_size)} of {figures.count(p.replay_capacity)} rows", "dim"),
    ]
    return _row("replay", fields, width)


def _advice(p: Progress, width: int, cores: int | None) -> list[Text]:
    """The advice, broken at spaces; what it found stands out from what would help."""
    lines = [Text(line) for line in textwrap.wrap(advice(p, cores), width)]
    lines[0].highlight_regex(r"^[\w-]+:", "bold yellow")
    return lines


def _figure(value: str, unit: str) -> Text:
    return Text.assemble((value, "bold"), (f" {unit}", "dim"))

"""Times as people say them: 2026-11-30, 2026-11-30T14:00, tuesday, yesterday, 3d, 12h, 30m. All in UTC. Pure."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
UNITS = {"d": "days", "h": "hours", "m": "minutes", "w": "weeks"}


def since(words: str, now: datetime) -> str:
    """The time as entries have it. A day is its beginning, a weekday the last one before today. Raises ValueError."""
    text = words.strip().lower()
    today = now.replace(hour=0, minute=0, second=0, microsecond=0)
    if text in ("today", "yesterday"):
        return shown(today - timedelta(days=int(text == "yesterday")))
    if text in DAYS:
        return shown(today - timedelta(days=(today.weekday() - DAYS.index(text) - 1) % 7 + 1))
    if found := re.fullmatch(r"(\d{1,5})\s*([dhmw])", text):
        return shown(now - timedelta(**{UNITS[found[2]]: int(found[1])}))
    try:
        time = datetime.fromisoformat(words.strip())
    except ValueError:
        message = f"{words!r} is no time: give a date (2026-11-30), a weekday, yesterday, or 3d, 12h, 30m ago"
        raise ValueError(message) from None
    return shown(time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC))


def shown(time: datetime) -> str:
    """UTC in seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")

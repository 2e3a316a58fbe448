"""Versions of the ticker as the e2e tests give them, and what the job says of them."""

from typing import Any

from .e2e_cluster import wait_until
from .ticker import Ticker

__all__ = ["NOWHERE", "WARM", "condition", "edition", "events", "reason", "wait_told"]

NOWHERE = "localhost/nowhere:1"
WARM = {"strategy": "WarmStandby", "standby": {"observeFor": "10s", "catchUpTimeout": "5m"}}


def condition(ticker: Ticker, kind: str) -> dict[str, str]:
    """A condition of the job; empty words where there is none."""
    found = {c["type"]: c for c in ticker.namespace.status().get("conditions", [])}
    return found.get(kind, {"status": "", "reason": "", "message": ""})


def reason(ticker: Ticker, kind: str) -> str:
    """The condition as `Status/Reason`."""
    found = condition(ticker, kind)
    return f"{found['status']}/{found['reason']}"


def events(ticker: Ticker) -> list[str]:
    """The reasons of the job's events, as often as each was told."""
    return [e["reason"] for e in ticker.namespace.every("Event")]


def wait_told(ticker: Ticker, event: str) -> None:
    """Events are written beside the status, not before it."""
    wait_until(lambda: event in events(ticker), 30, f"the event {event}")


def edition(ticker: Ticker, number: str) -> dict[str, Any]:
    """The arguments of another edition of the program, or of one that cannot be built."""
    return {"application": {"args": [*ticker.manifest()["spec"]["application"]["args"], number]}}

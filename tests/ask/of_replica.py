"""What the verbs about one replica say of one that is made up."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any, TypeVar
from unittest.mock import patch

import planner as fo
from planner.ask.replica import SchedulerReplica

T = TypeVar("T")


def _of(verb: Callable[..., T], replica: SchedulerReplica, **asked: Any) -> T:
    with patch.object(import_module(verb.__module__), "scheduler_replica", lambda *_: replica):
        return verb(**asked)


stability, batching, wait = (partial(_of, verb) for verb in (fo.stability, fo.batching, fo.wait))

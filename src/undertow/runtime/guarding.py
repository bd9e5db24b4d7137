"""The engine thread never dies of an error: what goes wrong in it is kept and raised by the next call of a worker."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from undertow.errors import UndertowError

log = logging.getLogger("undertow")

_Call = TypeVar("_Call", bound=Callable[..., Any])


def guarded(method: _Call) -> _Call:
    """Make a method of a group keep every error instead of raising it."""

    @functools.wraps(method)
    def run(self: Any, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except UndertowError as error:
            self.waiters.fail(error)
        except Exception as error:  # a defect of ours: said in full, never swallowed
            log.exception("the engine failed")
            self._fail(error)
        return None

    return run  # type: ignore[return-value]

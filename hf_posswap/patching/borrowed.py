"""A model that is changed for a while, and given back as it came."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hf_posswap.patching import patch, patch_state, unpatch
from hf_posswap.patching.install import encodings_of, install, uninstall
from hf_posswap.schemes import Scheme


@contextmanager
def borrowed(model: Any) -> Iterator[None]:
    """Whatever is patched meanwhile and however it ends, scheme, encodings and config are the former ones again."""
    state, config = patch_state(model), model.config
    former = None if state is None else encodings_of(model.base_model, state)
    try:
        yield
    finally:
        with interrupts_wait():
            if state is None:
                unpatch(model)
            elif patch_state(model) is not state:
                uninstall(model)
                put_back = {"encodings": former, "reloaded": state.reloaded, "put_back": config}
                install(model, state.family, state.scheme, state.geometry, **put_back)


def try_on(model: Any, scheme: Scheme, *, allow_unordered: bool = False) -> None:
    """`patch`, whole or not at all."""
    with interrupts_wait():
        patch(model, scheme, allow_unordered=allow_unordered)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Ctrl-C is answered at the end of the block, because a patch that is cut in two could not be taken off."""
    former = signal.getsignal(signal.SIGINT)
    if former is None or threading.current_thread() is not threading.main_thread():
        yield  # no handler of Python's, or a thread in which none runs
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, former)
        if came:
            signal.raise_signal(signal.SIGINT)

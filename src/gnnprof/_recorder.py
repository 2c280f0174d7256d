"""Records the block: sessions, their steps, and the folding of finished sessions into sums.

A long block is cut into sessions at the start of a forward, and each finished one is folded into
the sums at once, so that memory stays flat however long the block is. No session is ended while a
range of torch's may be open: then it is cut later.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from gnnprof import _device
from gnnprof._attribution import SESSION_MARKER, Attribution
from gnnprof._events import (
    Marker,
    Session,
    no_other_session_starts,
    others_work,
    starting_session,
)
from gnnprof._interrupts import interrupts_deferred
from gnnprof._markers import Markers
from gnnprof._open_ranges import let_others_finish, ranges_watched, session_may_end
from gnnprof._time_line import TimeLine

if TYPE_CHECKING:  # the op counter is loaded only where something is counted
    from gnnprof._work import CallCatcher, CountedForward

_FIRST_SESSION = 800
"""Markers after which a block is cut for the first time: 10,000 to 40,000 events, 20 to 80 MB.

A block shorter than that, twenty forwards of a GNN of three layers, is not cut at all and pays
nothing for it.
"""

_LATER_SESSION = 100
"""Markers in every further session of a long block: 5 MB."""

_NO_STEPS = (
    "a step begins with a forward of the model itself, and only parts of it were called; profile "
    "the part that is called once in every step"
)
"""Why no steps were counted, of a model such as PyG's GAE."""


@dataclass(frozen=True)
class Schedule:
    """Which forwards of the model are recorded.

    A step begins with an outermost forward of the model and lasts until the next one.

    Attributes:
        skip: Steps that run without the profiler.
        warmup: Steps after them that run with it and are thrown away.
        active: Steps after them that are recorded; None for all.
    """

    skip: int = 0
    warmup: int = 0
    active: int | None = None

    @property
    def first(self) -> int:
        """Number of the first recorded step, from 0."""
        return self.skip + self.warmup

    @property
    def end(self) -> int | None:
        """Number of the first step after the recorded ones."""
        return None if self.active is None else self.first + self.active


class Recorder:
    """What one `with` block of the Profiler does to the model and to torch's profiler.

    Args:
        model: The model, as the user calls it.
        selected: Dotted names of the modules to mark; None for all.
        accelerator: 'cuda', 'xpu' or None: record its kernels too.
        memory: Record allocations and frees too.
        schedule: The steps to record.
        count: Repeat a forward after the block to count FLOPs and bytes.

    Attributes:
        accelerator: As given.
        memory: As given.
        markers: The marked places.
        attribution: The sums so far.
        start_seconds: Time spent in starting torch's profiler.
        stop_seconds: Time spent in stopping it and in folding.
        steps: Recorded steps so far.
        counted: The work of one forward, once the block has ended; None unless asked for.
    """

    def __init__(
        self,
        model: nn.Module,
        selected: Collection[str] | None,
        accelerator: str | None,
        memory: bool,
        schedule: Schedule,
        *,
        count: bool,
    ) -> None:
        self.accelerator = accelerator
        self.memory = memory
        self._schedule = schedule
        this_thread_only = not self._new_session().all_threads
        self.markers = Markers(
            model, selected, this_thread_only, self._next_step, self._between_calls
        )
        self.attribution = Attribution(site for _, site in self.markers.layout)
        self.start_seconds = 0.0
        self.stop_seconds = 0.0
        self.steps = 0
        self._forwards = 0
        self._begun_at = 0
        self._has_folded = False
        self._others_work = False
        self._running: ExitStack | None = None
        self._window = ExitStack()
        self._has_window = False
        self._finished: Session | None = None
        self._failure: RuntimeError | None = None
        self._time_line: TimeLine | None = None
        self._session = self._new_session()
        self._placed = ExitStack()
        self._model, self._selected = model, selected
        self._catcher = self._new_catcher() if count else None
        self.counted: CountedForward | None = None

    # --- the block ---------------------------------------------------------------------------

    def start(self) -> None:
        """Place the markers and start recording, unless the first steps are skipped.

        Raises:
            SessionRunningError: If a profiler session is on.
        """
        with ExitStack() as undo:
            if self._catcher:
                undo.enter_context(self._catcher.place())
            undo.enter_context(ranges_watched(self._between_calls))
            undo.enter_context(self.markers.place())
            if self._schedule.skip == 0:
                self._begin_session()
                if self._schedule.first == 0:
                    self._open_window()
            self._placed = undo.pop_all()

    def stop(self, *, failed: bool) -> None:
        """Stop recording and take the markers away.

        Args:
            failed: Whether the block raised: then no forward is repeated.
        """
        if failed:
            self._catcher = None
        with self._placed:
            self.markers.close_all()
            if self._running is not None:
                self._end_session()

    def count(self) -> None:
        """Repeat a forward to count its work, if that was asked for and the block did not raise."""
        catcher, self._catcher = self._catcher, None
        if catcher:
            self.counted = catcher.count(self._selected)

    def settle(self) -> Attribution:
        """Fold what is left and return the sums."""
        with interrupts_deferred():  # or a part of it would be added again
            self._settle(goes_on=False)
        return self.attribution

    def _settle(self, *, goes_on: bool) -> None:
        if self._failure is not None:
            raise RuntimeError(
                f"the recording ended early, after {self.steps} steps: {self._failure}"
            ) from self._failure
        if self._finished is not None:
            events = self._finished.events(goes_on=goes_on)
            self._others_work |= others_work(events.host, SESSION_MARKER)
            self.attribution.add(events)
            self._finished = None

    def export_chrome_trace(self, path: str | os.PathLike[str], *, overwrite: bool) -> Path:
        """Write the time line of the last session; see `TimeLine.write`.

        Raises:
            RuntimeError: If there was none.
        """
        if not self.has_recorded:
            raise RuntimeError(f"nothing was recorded, so there is no trace: {self._why_nothing()}")
        if self._time_line is None:
            self._time_line = TimeLine(self._session.export_chrome_trace)
        return self._time_line.write(path, overwrite=overwrite)

    @property
    def has_recorded(self) -> bool:
        """Whether any part of the block was recorded."""
        return self.attribution.session_ns > 0 or self._finished is not None

    def unmeasured(self) -> Iterator[str]:
        """Yield a sentence for each thing that is not in the rows though it was asked for."""
        if not self.has_recorded:
            yield f"Nothing was recorded: {self._why_nothing()}"
        elif not self.markers.calls and self._forwards:
            yield "None of the modules that 'paths' selects was called"
        elif not self.markers.calls:
            yield "The model was not called in the block: profile the object that is called"
        elif self._schedule.active is not None and not self._forwards:
            yield f"The whole block was recorded: {_NO_STEPS}"
        if self.markers.unrecorded_calls:
            yield (
                f"Not measured: {self.markers.unrecorded_calls} module calls on other threads; "
                "torch records one thread only with profile_memory=True (and always, before 2.7)"
            )
        if self.counted:
            yield from self.counted.notes

    def _why_nothing(self) -> str:
        if self.markers.calls and not self._forwards:
            return _NO_STEPS
        ran = f"the model ran {self._forwards} steps"
        return f"{ran}, and skip + warmup is {self._schedule.first}"

    # --- steps -------------------------------------------------------------------------------

    def _next_step(self) -> None:
        """At the start of an outermost forward: start, cut or end the recording if it is time."""
        self._carefully(self._go_on)

    def _between_calls(self) -> None:
        """Cut or end the recording where no step begins, if it is time.

        That is after a range that may hold many forwards, and before a call of a part of a model
        whose own forward is not called, such as the encoder of PyG's GAE.
        """
        if self.markers.on_own_thread and self._running is not None:
            self._carefully(self._end_or_cut)

    def _carefully(self, change: Callable[[], None]) -> None:
        """What goes wrong in it is told when the rows are asked for: it is no fault of the user."""
        if self._failure is not None:
            return
        try:
            change()
        except RuntimeError as error:
            self._failure = error

    def _go_on(self) -> None:
        step, schedule = self._forwards, self._schedule
        self._forwards += 1
        if step == schedule.end:
            self._window.close()
        if step == schedule.first and step > 0:
            self._begin_recorded_steps()
        elif step == schedule.skip and step > 0:
            self._begin_session()
        elif self._running is not None:
            self._end_or_cut()
        if schedule.first <= step and (schedule.end is None or step < schedule.end):
            self.steps += 1

    def _end_or_cut(self) -> None:
        """End a session whose steps are over, or cut a long one, unless a range may be open."""
        end = self._schedule.end
        if end is not None and self._forwards > end:
            if self._may_end():
                self._end_session()
        elif self._has_window and self._is_time_to_fold():
            self._cut()

    @interrupts_deferred()
    def _begin_recorded_steps(self) -> None:
        """Throw the warm-up away and record what follows, in a session of its own if it may be."""
        if self._running is not None and self._may_end():
            self._end_session()
        if self._running is None:
            self._begin_session()
        elif self.accelerator:
            _device.synchronize()  # the kernels of the warm-up are not of what follows
        self._open_window()

    @interrupts_deferred()
    def _cut(self) -> None:
        """End the session, fold it into the sums and begin the next one."""
        with no_other_session_starts():
            self._end_session()
            self._fold()
            self._begin_session()
            self._open_window()

    def _fold(self) -> None:
        """Add the finished session to the sums and give its memory back."""
        began = _device.clock()
        self._has_folded = True
        self._settle(goes_on=True)
        self._session = self._new_session()  # drops the events of the old one
        _device.release_freed_memory()
        self.stop_seconds += _device.clock() - began

    def _is_time_to_fold(self) -> bool:
        limit = _LATER_SESSION if self._has_folded else _FIRST_SESSION
        enough = self.markers.entered - self._begun_at >= limit
        return enough and not self.markers.any_open and self._may_end()

    def _may_end(self) -> bool:
        return not self._others_work and session_may_end(all_threads=self._session.all_threads)

    # --- sessions ----------------------------------------------------------------------------

    def _new_catcher(self) -> CallCatcher:
        from gnnprof._work import CallCatcher

        return CallCatcher(self._model, lambda: self._running is not None)

    def _new_session(self) -> Session:
        return Session(self.accelerator, self.memory)

    @interrupts_deferred()
    def _begin_session(self) -> None:
        began = _device.clock()
        if self.accelerator:
            _device.synchronize()  # or kernels queued before would be recorded in it
        self._session = self._new_session()
        with ExitStack() as undo:
            with starting_session("Profiler"):
                self._session.start()
            undo.callback(self._session.stop)
            undo.callback(setattr, self.markers, "recording", False)
            self.markers.recording = True
            self._running = undo.pop_all()
        self._has_window = False
        self._begun_at = self.markers.entered
        self.start_seconds += _device.clock() - began

    def _open_window(self) -> None:
        """Begin the part of the session that counts; what runs before or after is thrown away."""
        marker = Marker(SESSION_MARKER)
        marker.__enter__()
        self._has_window = True
        self._window.callback(setattr, self.markers, "recording", False)
        self._window.callback(marker.__exit__, None, None, None)

    @interrupts_deferred()
    def _end_session(self) -> None:
        """End the session, and keep it if it has a part that counts."""
        self._window.close()
        running, self._running = self._running, None
        if running is not None:
            began = _device.clock()
            if self._session.all_threads:
                let_others_finish()
            running.close()
            self.stop_seconds += _device.clock() - began
        self._finished = self._session if self._has_window else None

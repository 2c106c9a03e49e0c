"""The loop between callers and engine: who drives, who waits, what a failure means."""

import sys
import threading

import pytest
from deepinfer_core.errors import EngineError, RequestError
from deepinfer_core.faces.loop import EngineLoop
from deepinfer_core.scheduling.scheduler import StepResult


class Gate:
    """An engine with endless steps, each of which waits until it may end."""

    has_unfinished = True

    def __init__(self):
        self.in_step, self.go_on = threading.Event(), threading.Event()
        self.num_closed = 0
        self.error = None

    def advance(self):
        self.in_step.set()
        assert self.go_on.wait(10)
        if self.error:
            raise self.error
        return StepResult()

    def close(self):
        self.num_closed += 1


@pytest.fixture
def gate():
    return Gate()


@pytest.fixture
def loop(gate):
    loop = EngineLoop(gate)
    yield loop
    gate.go_on.set()
    loop.close()
    assert gate.num_closed == 1


@pytest.fixture
def stepping(loop, gate):
    """The engine thread is inside a step."""
    loop.start_thread()
    assert gate.in_step.wait(10)


@pytest.mark.usefixtures("stepping")
def test_what_is_asked_for_runs_between_two_steps(loop, gate):
    future = loop.submit(lambda: 42)
    assert not future.done()
    gate.go_on.set()
    assert future.result(10) == 42


@pytest.mark.usefixtures("stepping")
def test_what_is_cancelled_in_time_does_not_run(loop, gate):
    ran = []
    future = loop.submit(lambda: ran.append(1))
    assert future.cancel()
    gate.go_on.set()
    loop.settle()
    assert not ran
    assert loop.call(lambda: "alive") == "alive"


@pytest.mark.usefixtures("stepping")
def test_posting_never_waits(loop):
    loop.post(lambda: None)
    loop.start_thread()


@pytest.mark.parametrize("has_thread", [False, True])
def test_a_finaliser_may_post_in_the_middle_of_any_call(loop, gate, has_thread):
    """The garbage collector ran one inside the loop's own wake-up, whose lock it then waited for.

    Here one runs at the beginning of every call that posting makes, as it may.
    """
    gate.go_on.set()
    gate.has_unfinished = False
    if has_thread:
        loop.start_thread()
    ran = []

    def collect_garbage(frame, event, arg):
        if event == "call":
            sys.setprofile(None)
            loop.post(lambda: ran.append(frame.f_code.co_name))
            sys.setprofile(collect_garbage)

    def post():
        sys.setprofile(collect_garbage)
        loop.post(lambda: None)
        sys.setprofile(None)

    worker = threading.Thread(target=post, daemon=True)
    worker.start()
    worker.join(10)
    assert not worker.is_alive(), "a finaliser waits for a lock of the call that it interrupted"
    loop.settle()
    assert "post" in ran


def test_without_a_thread_the_caller_drives(loop, gate):
    gate.go_on.set()
    done = threading.Event()
    loop.post(lambda: None)
    drivers = []
    advance = gate.advance

    def noting_advance():
        drivers.append(threading.current_thread())
        if len(drivers) == 5:
            done.set()
        return advance()

    gate.advance = noting_advance
    loop.drive(done)
    assert drivers == [threading.current_thread()] * 5


def test_a_caller_that_drives_hands_over_to_the_thread(loop, gate):
    gate.go_on.set()
    done = threading.Event()
    driver = threading.Thread(target=loop.drive, args=(done,))
    driver.start()
    assert gate.in_step.wait(10)
    loop.start_thread()
    loop.settle()
    names = set()
    advance = gate.advance
    gate.advance = lambda: names.add(threading.current_thread().name) or advance()
    for _ in range(20):
        loop.settle()
    assert names <= {"deepinfer-engine"}
    done.set()
    driver.join(10)
    assert not driver.is_alive()


def test_an_error_of_what_was_asked_for_is_the_callers_alone(loop, gate):
    gate.go_on.set()
    loop.start_thread()
    with pytest.raises(ZeroDivisionError):
        loop.call(lambda: 1 // 0)
    assert loop.call(lambda: 1) == 1


@pytest.mark.usefixtures("stepping")
def test_a_failed_engine_fails_what_comes_later_and_still_settles(loop, gate):
    later = loop.submit(lambda: 1)
    gate.error = RuntimeError("boom")
    gate.go_on.set()
    with pytest.raises(EngineError, match="boom"):
        later.result(10)
    with pytest.raises(EngineError, match="boom"):
        loop.call(lambda: 1)
    with pytest.raises(EngineError, match="boom"):
        loop.drive(threading.Event())
    loop.settle()


def test_a_closed_loop_says_so(loop, gate):
    gate.go_on.set()
    loop.close()
    loop.close()
    with pytest.raises(EngineError, match="closed"):
        loop.call(lambda: 1)
    loop.start_thread()
    loop.settle()


def test_a_finaliser_in_a_step_closes_behind_it(loop, gate):
    """The garbage collector may run anywhere; the loop used to wait for itself for ever."""
    gate.go_on.set()
    called, advance = threading.Event(), gate.advance

    def advance_and_close():
        loop.close()
        called.set()
        return advance()

    gate.advance = advance_and_close
    loop.start_thread()
    assert called.wait(10)
    loop.close()
    assert gate.num_closed == 1
    with pytest.raises(EngineError, match="closed"):
        loop.call(lambda: 1)


def test_what_a_failed_engine_says_at_the_end_is_not_heard(loop, gate):
    """It used to come out of `close` and leave whoever waited for the loop without an answer."""
    gate.go_on.set()
    gate.error = RuntimeError("boom")
    close = gate.close

    def close_and_fail():
        close()
        raise RuntimeError("lost device")

    gate.close = close_and_fail
    with pytest.raises(EngineError, match="boom"):
        loop.drive(threading.Event())
    loop.close()


def test_a_requests_error_out_of_a_step_is_the_engines(loop, gate):
    """A kernel that raised one stopped the engine, and callers thought only a prompt was bad."""
    gate.go_on.set()
    gate.error = RequestError("bad shape")
    with pytest.raises(EngineError, match="RequestError: bad shape"):
        loop.drive(threading.Event())

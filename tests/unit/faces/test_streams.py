"""Deltas as they come, and the end of a request that nobody listens to."""

import asyncio
import gc
import queue
import threading
import time

import pytest
from deepinfer_core.errors import EngineError, RequestError
from deepinfer_core.faces.streams import TokenStream, stream_async
from deepinfer_core.sampling_params import SamplingParams

LONG = SamplingParams(max_tokens=None)


@pytest.fixture
def slow(engine):
    """Steps take so long that an answer of 3000 tokens outlives `wait_until_idle` if it is let."""
    advance = engine.advance

    def slow_advance():
        time.sleep(0.004)
        return advance()

    engine.advance = slow_advance


@pytest.fixture
def stream(frontend, encoder):
    def stream(prompt, params=LONG, **options):
        return TokenStream(frontend, encoder.either(prompt), params, **options)

    return stream


def wait_until_idle(engine):
    deadline = time.monotonic() + 2
    while engine.has_unfinished:
        assert time.monotonic() < deadline, "the request is still running"
        time.sleep(0.002)


def test_deltas_join_to_the_whole(stream, say):
    ids = say("héllo wörld")
    with stream("p", SamplingParams(max_tokens=99, logprobs=0), request_id="mine") as deltas:
        got = list(deltas)
    assert "".join(d.text for d in got) == "héllo wörld" == deltas.output.text
    assert [i for d in got for i in d.token_ids][:-1] == ids
    assert sum(len(d.logprobs) for d in got) == len(ids) + 1
    assert {d.request_id for d in got} == {"mine"}
    assert [d.finish_reason for d in got] == [None] * (len(got) - 1) + ["stop"]
    assert len(got) > 3
    assert "\ufffd" not in "".join(d.text for d in got)


def test_a_reader_never_waits_without_a_limit(stream, say):
    """On Windows Ctrl-C is not heard while a thread waits without one."""
    ids = say("abc")

    class Slow:
        def __init__(self, items):
            self.items, self.num_timeouts = items, 0

        def get(self, timeout):
            assert 0 < timeout <= 0.5
            self.num_timeouts += 1
            if self.num_timeouts % 3:
                raise queue.Empty
            return self.items.get(timeout=10)

    with stream("p") as deltas:
        slow = deltas._items = Slow(deltas._items)
        got = list(deltas)
    assert [i for d in got for i in d.token_ids][: len(ids)] == ids
    assert slow.num_timeouts > len(got)


def test_no_part_of_a_stop_string_is_shown(stream, say):
    say("a EN b END c")
    got = list(stream("p", SamplingParams(max_tokens=99, stop="END")))
    shown = ""
    for delta in got:
        shown += delta.text
        assert "a EN b ".startswith(shown)
        assert delta.logprobs is None
    assert shown == "a EN b "
    assert got[-1].stop_reason == "END"


def test_samples_of_one_prompt_are_told_apart(stream, engine):
    texts = ["one", "two two"]
    engine._reply = lambda prompt, index: engine.tokenizer.encode(texts[index])
    got = list(stream("p", SamplingParams(max_tokens=99, n=2)))
    assert ["".join(d.text for d in got if d.index == i) for i in (0, 1)] == texts


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("how", ["close", "with", "forget", "never started"])
def test_whoever_stops_listening_aborts(stream, engine, how):
    deltas = stream("x" * 3000)
    if how != "never started":
        next(deltas)
    if how == "close":
        deltas.close()
        deltas.close()
        assert list(deltas) == []
    elif how == "with":
        with deltas:
            pass
    del deltas
    gc.collect()
    wait_until_idle(engine)


@pytest.mark.usefixtures("slow")
def test_abort_by_id_ends_the_stream_with_what_there_is(stream, frontend, engine):
    deltas = stream("x" * 3000, request_id="r1")
    next(deltas)
    frontend.abort("r1")
    frontend.abort("r1")
    frontend.abort("unknown")
    rest = list(deltas)
    assert rest[-1].finish_reason == "abort"
    assert deltas.output.outputs[0].finish_reason == "abort"
    wait_until_idle(engine)


@pytest.mark.usefixtures("slow")
def test_an_id_in_use_is_refused_and_its_owner_goes_on(stream, frontend, encoder):
    """The refused stream used to abort, by name, the request that it had clashed with."""
    first = stream("x" * 300, request_id="r1")
    next(first)
    with pytest.raises(RequestError, match="in use"):
        stream("y", request_id="r1")
    gc.collect()

    async def clash():
        async for _ in stream_async(frontend, encoder.either("y"), LONG, request_id="r1"):
            pass

    with pytest.raises(RequestError, match="in use"):
        asyncio.run(clash())
    assert list(first)[-1].finish_reason == "stop"
    assert list(stream("y", request_id="r1"))[-1].finish_reason == "stop"


@pytest.mark.usefixtures("slow")
def test_an_id_that_looks_like_a_made_up_one_is_in_nobodys_way(stream, frontend):
    with stream("x" * 300, request_id="request-0"):
        assert list(stream("y"))[-1].finish_reason == "stop"


def test_a_bad_prompt_is_an_error_at_once(stream):
    with pytest.raises(RequestError, match="empty"):
        stream("")


def test_an_engine_that_stops_ends_the_stream(stream, engine):
    engine.fail_next_step = ValueError("boom")
    with pytest.raises(EngineError, match="boom"):
        list(stream("x" * 3000))
    with pytest.raises(EngineError, match="boom"):
        stream("y")


@pytest.mark.usefixtures("slow")
def test_closing_the_engine_ends_the_stream(stream, frontend, engine):
    deltas = stream("x" * 3000)
    frontend.loop.close()
    with pytest.raises(EngineError, match="closed"):
        list(deltas)
    assert engine.is_closed
    assert not any(t.name == "deepinfer-engine" for t in threading.enumerate())


def test_async_streams_run_side_by_side(frontend, encoder):
    async def read(text):
        encoded = encoder.either(text)
        return "".join([d.text async for d in stream_async(frontend, encoded, LONG)])

    async def read_all():
        return await asyncio.gather(*(read(text) for text in ("abc", "xyz", "pqr" * 9)))

    assert asyncio.run(read_all()) == ["cba", "zyx", "rqp" * 9]


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize("how", ["break", "cancel", "cancel early"])
def test_async_ends_abort(frontend, encoder, engine, how):
    async def read(first):
        async for _ in stream_async(frontend, encoder.either("x" * 3000), LONG):
            first.set()
            if how == "break":
                break

    async def main():
        first = asyncio.Event()
        task = asyncio.create_task(read(first))
        if how == "cancel early":
            await asyncio.sleep(0)
        else:
            await first.wait()
        if how == "break":
            await task
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.to_thread(wait_until_idle, engine)

    asyncio.run(main())


@pytest.mark.usefixtures("slow")
def test_an_event_loop_that_is_gone_aborts(frontend, encoder, engine):
    loop = asyncio.new_event_loop()
    deltas = stream_async(frontend, encoder.either("x" * 3000), LONG)
    loop.run_until_complete(anext(deltas))
    loop.close()
    wait_until_idle(engine)
    with pytest.raises(StopIteration):  # ends the generator without its event loop
        deltas.aclose().send(None)


def test_async_errors_reach_the_reader(frontend, encoder):
    async def main():
        async for _ in stream_async(frontend, encoder.either(""), LONG):
            pass

    with pytest.raises(RequestError, match="empty"):
        asyncio.run(main())


@pytest.mark.usefixtures("slow")
def test_the_event_loop_is_never_blocked(frontend, encoder):
    longest = 0.0

    async def tick():
        nonlocal longest
        while True:
            begun = time.monotonic()
            await asyncio.sleep(0.001)
            longest = max(longest, time.monotonic() - begun)

    async def main():
        ticker = asyncio.create_task(tick())
        async for _ in stream_async(frontend, encoder.either("x" * 100), LONG):
            pass
        ticker.cancel()

    asyncio.run(main())
    assert longest < 0.5


def test_generate_goes_through_the_running_thread(stream, frontend, encoder):
    from deepinfer_core.faces.collect import make_jobs, run_jobs

    deltas = stream("abc" * 50)
    jobs = make_jobs(encoder.prompts(["abc", "xyz"]), LONG)
    assert [o.text for o in run_jobs(frontend, jobs)] == ["cba", "zyx"]
    assert "".join(d.text for d in deltas) == "cba" * 50

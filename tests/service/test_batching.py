"""`Batcher`: every request gets its own predictions, in batches of similar length."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.service.batching import Batcher, QueueFullError

Questions = list[tuple[bool, list[int]]]


def replied(
    questions: Questions, *, pass_rows: int = 4, batch_rows: int = 8, broken: int = -1
) -> tuple[list[list[int] | BaseException], list[tuple[bool, list[int]]]]:
    """Ask at once, and return the replies (a row's is its negative) and what each pass held."""
    passes: list[tuple[bool, list[int]]] = []

    def predict(key: bool, rows: list[int]) -> list[int]:
        passes.append((key, rows))
        if broken in rows:
            raise ValueError("broken")
        return [-row for row in rows]

    async def asked() -> list[list[int] | BaseException]:
        batcher = Batcher(
            predict,
            length=lambda row: row,
            window=0.0,
            pass_rows=pass_rows,
            batch_rows=batch_rows,
            queue_rows=10_000,
        )
        replies = [batcher.submit(key, rows) for key, rows in questions]
        assert batcher.waiting == sum(len(rows) for _, rows in questions)
        batcher.start()
        result = await asyncio.gather(*replies, return_exceptions=True)
        assert batcher.waiting == 0
        await batcher.stop()
        return result

    return asyncio.run(asked()), passes


ROWS = st.lists(st.integers(0, 50), min_size=1, max_size=9)


@given(st.lists(st.tuples(st.booleans(), ROWS), min_size=1, max_size=20))
def test_each_request_gets_the_predictions_of_its_rows(questions: Questions) -> None:
    replies, passes = replied(questions)
    assert replies == [[-row for row in rows] for _, rows in questions]
    # Every row is predicted once, in a batch of rows with its key.
    for key in (False, True):
        asked = [row for own, rows in questions if own is key for row in rows]
        seen = [row for own, rows in passes if own is key for row in rows]
        assert sorted(asked) == sorted(seen)
    whole = [rows for _, rows in questions]
    assert all(len(rows) <= 4 or rows in whole for _, rows in passes)


def test_a_batch_is_predicted_from_short_to_long_and_the_oldest_are_in_it() -> None:
    lengths = [9, 1, 8, 2, 7, 3, 6, 4, 0, 5]
    _, passes = replied([(True, [length]) for length in lengths])
    assert [rows for _, rows in passes] == [[1, 2, 3, 4], [6, 7, 8, 9], [0, 5]]


@given(st.lists(ROWS, min_size=1, max_size=10), st.integers(0, 50))
def test_only_requests_with_a_broken_row_fail(rows: list[list[int]], broken: int) -> None:
    replies, _ = replied([(True, each) for each in rows], broken=broken)
    for reply, each in zip(replies, rows, strict=True):
        if broken in each:
            assert isinstance(reply, ValueError)
        else:
            assert reply == [-row for row in each]


def test_a_client_can_send_again_during_the_next_pass() -> None:
    passes: list[list[int]] = []

    async def asked() -> None:
        again = asyncio.Event()
        loop = asyncio.get_running_loop()

        def predict(_: bool, rows: list[int]) -> list[int]:
            passes.append(rows)
            if rows == [2]:
                # The reply to the first pass is out before the second one ends.
                asyncio.run_coroutine_threadsafe(again.wait(), loop).result(60)
            return rows

        batcher = Batcher(
            predict,
            length=lambda row: row,
            window=0.0,
            pass_rows=1,
            batch_rows=2,
            queue_rows=2,
        )
        first, second = batcher.submit(True, [1]), batcher.submit(True, [2])
        with pytest.raises(QueueFullError, match="Ask again in 1 s"):
            batcher.submit(True, [3])
        batcher.start()
        assert await first == [1]
        third = batcher.submit(True, [3])
        assert not second.done()
        again.set()
        assert (await second, await third) == ([2], [3])
        await batcher.stop()

    asyncio.run(asked())
    assert passes == [[1], [2], [3]]

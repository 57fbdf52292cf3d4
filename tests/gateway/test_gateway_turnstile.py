"""Heavy pieces take turns."""

import asyncio
from collections import Counter

from whippletree.gateway.turnstile import PIECES, Turnstile


async def test_a_few_pieces_begin_per_iteration_in_order_of_arrival():
    turnstile, begun, iteration = Turnstile(), [], 0

    async def piece(name):
        await turnstile.turn()
        begun.append((iteration, name))

    pieces = [asyncio.create_task(piece(name)) for name in range(20)]
    while not all(task.done() for task in pieces):
        await asyncio.sleep(0)
        iteration += 1
    assert [name for _, name in begun] == list(range(20))
    assert max(Counter(when for when, _ in begun).values()) == PIECES
    assert turnstile.waiting == 0


async def test_a_piece_alone_begins_at_once():
    turnstile = Turnstile()
    for _ in range(3):
        turn = turnstile.turn()
        try:
            turn.send(None)
        except StopIteration:
            await asyncio.sleep(0.001)  # its iteration ends
        else:
            raise AssertionError("it had to wait")


async def test_whoever_is_cancelled_in_line_holds_nobody_up():
    turnstile, begun = Turnstile(), []

    async def piece(name):
        await turnstile.turn()
        begun.append(name)

    pieces = [asyncio.create_task(piece(name)) for name in range(PIECES + 5)]
    await asyncio.sleep(0)
    gone = (PIECES + 1, PIECES + 2, PIECES + 4)
    for number in gone:
        pieces[number].cancel()
    await asyncio.gather(*pieces, return_exceptions=True)
    assert begun == [number for number in range(PIECES + 5) if number not in gone]


async def test_others_run_between_the_pieces():
    """A health check that comes while hundreds are in line is answered after a few of them."""
    turnstile, begun = Turnstile(), []

    async def piece(name):
        await turnstile.turn()
        begun.append(name)

    pieces = [asyncio.create_task(piece(name)) for name in range(300)]
    await asyncio.sleep(0)
    for _ in range(5):  # what an answer needs
        await asyncio.sleep(0)
    assert len(begun) <= 6 * PIECES
    await asyncio.gather(*pieces)

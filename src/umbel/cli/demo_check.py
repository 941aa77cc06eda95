"""Whether everything that ``umbel demo`` counted adds up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from umbel.cli.demo_app import KILLS, Count
from umbel.ports import DeadLetter, QueueStats


@dataclass(frozen=True, slots=True)
class Tally:
    """What came of the tasks.

    `counts` and `errors` are by path; every task is in one of them. `letters` are the dead letters
    after the last task has ended, `seconds` is how long that took.
    """

    counts: Mapping[str, Count]
    errors: Mapping[str, str]
    letters: Sequence[DeadLetter]
    seconds: float

    @property
    def words(self) -> int:
        return sum(count["words"] for count in self.counts.values())

    @property
    def retries(self) -> int:
        return sum(count["retries"] for count in self.counts.values())

    @property
    def rate(self) -> float:
        """Tasks per second."""
        return (len(self.counts) + len(self.errors)) / self.seconds


def what_is_off(
    expected: Mapping[str, int],
    tally: Tally,
    deadly: str,
    revived: Count | None,
    failed_requests: int,
    queues: Sequence[QueueStats],
) -> list[str]:
    """A sentence for each count that is not what it must be; none if all is well.

    `expected` are the words by path, as a plain loop counted them. `deadly` is the poison file's
    path, `revived` what its task returned after it was requeued.
    """
    off = [f"{path} ended with {error}" for path, error in tally.errors.items() if path != deadly]
    counts = dict(tally.counts)
    if deadly in counts:
        off.append(f"the poison file {deadly} was counted without killing anything")
    if revived is None:
        off.append(f"the poison file {deadly} wasn't counted after it was requeued")
    else:
        counts[deadly] = revived
    for path, count in counts.items():
        if count["words"] != expected[path]:
            off.append(
                f"{path} has {expected[path]} words by the plain loop and {count['words']} by "
                "its task"
            )
    off += [f"{path} has no count" for path in expected if path not in {**counts, **tally.errors}]
    if tally.retries != failed_requests:
        off.append(f"{failed_requests} requests failed, and there were {tally.retries} retries")
    return off + _letters_off(tally.letters) + _left_over(queues)


def _letters_off(letters: Sequence[DeadLetter]) -> list[str]:
    if len(letters) != 1:
        return [f"there are {len(letters)} dead letters, not 1"]
    if letters[0].redeliveries != KILLS - 1:
        return [f"the poison was redelivered {letters[0].redeliveries} times, not {KILLS - 1}"]
    return []


def _left_over(queues: Sequence[QueueStats]) -> list[str]:
    left = sum(q.ready + q.delayed + q.leased + q.lost + q.dead for q in queues)
    return [f"{left} messages are left in the broker"] if left else []

"""Leadership in numbers: no write of an old leader is under way when the next one starts."""

from pinrail_operator import api, leader


def test_a_write_begun_in_the_last_moment_of_belief_ends_before_the_lease_does() -> None:
    assert leader.BELIEF + sum(api.WRITE_TIMEOUT) < leader.LEASE

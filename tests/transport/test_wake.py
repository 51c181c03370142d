import select
import threading

from srl.transport.wake import Wake


def _is_awake(wake):
    return bool(select.select([wake.fd], [], [], 0)[0])


def test_wake_is_readable_from_set_until_clear():
    wake = Wake()
    assert not _is_awake(wake)
    wake.set()
    wake.set()
    assert _is_awake(wake)
    wake.clear()
    assert not _is_awake(wake)
    wake.clear()
    wake.set()
    assert _is_awake(wake)
    wake.close()


def test_wake_set_more_often_than_the_pipe_holds_does_not_block():
    wake = Wake()
    for _ in range(100_000):
        wake.set()
    wake.clear()
    assert not _is_awake(wake)
    wake.close()


def test_wake_ends_a_wait_in_another_thread():
    wake, woken = Wake(), []
    thread = threading.Thread(target=lambda: woken.extend(select.select([wake.fd], [], [], 30)[0]))
    thread.start()
    wake.set()
    thread.join(30)
    assert woken == [wake.fd]
    wake.close()


def test_closed_wake_may_be_set_cleared_and_closed():
    wake = Wake()
    wake.close()
    wake.set()
    wake.clear()
    wake.close()
    assert wake.fd == -1

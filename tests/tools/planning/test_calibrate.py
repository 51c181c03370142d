from srl.tools.bench.window import Window
from srl.tools.planning.calibrate import others_in


def window(elsewhere):
    return Window(seconds=6.0, env_steps=6000, versions=6, workers={}, cpu={}, elsewhere=elsewhere)


def test_a_host_that_is_not_quiet_is_told():
    assert others_in({"near": window(None), "far": window(0.05)}) is None
    words = others_in({"near": window(0.1), "far": window(1.26)})
    assert words is not None
    assert "kept up to 1.3 cores busy" in words
    assert "--again" in words

"""The command line: srl train, resume, eval, play, versions, export, compare, list, explain, check-env, bench, ...

Exit codes: 0 ended as asked; 1 the return asked for was not reached, doctor found something to do,
or a failure did not come again; 2 bad input, nothing was started; 3 the run failed, or the env breaks its contract; 130 Ctrl-C.
"""

import io
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

USAGE = """\
usage: srl COMMAND ...

  srl train NAME [--launcher inline|local|ray] [--out DIR] [--auto] [--a.b value ...]
                          train an experiment (--help lists its options); --auto: as tuned
  srl resume RUN [--from best|VERSION] [--a.b value ...]
                          go on with a run from its newest checkpoint, or from another
  srl eval RUN [--episodes N] [--version V|TAG]
                          play a run's newest checkpoint (or a version it kept: 40, best)
  srl play RUN [--episodes N] [--version V|TAG] [--seed N] [--sampled] [--video F.mp4|F.gif]
                          play it an episode after the other, and film it
  srl versions RUN [--newest N] [--where "eval_return > 100"] [--tag NAME=V] [--policy NAME]
                          the versions a run kept; with --tag, keep one by a name
  srl export RUN --format onnx|torch [--out F.onnx|F.pt2] [--version V|TAG] [--policy NAME]
                          the best actions of a policy as a file that needs no SRL
  srl compare RUN ... [--at ENV_STEPS] [--by a.b,...] [--scales F.json] [--json F] [--out FOLDER]
                          which method is better, and how sure that is; RUN: a run folder, or a
                          folder of them; --out: plots
  srl list                experiments and env families
  srl explain NAME [--a.b value ...]
                          the workers, streams and memory of an experiment
  srl inspect RUN|CHECKPOINT [--verify]
                          the checkpoints of a run, and what the newest (or the one given) holds
                          and restores; --verify reads every byte of all of them
  srl check-env NAME [--env.options JSON] [--env.wrappers A B ...] [--env.reseed start] [--seed N]
                          prove that an env keeps the contract, and measure it; NAME is an
                          experiment, FAMILY/NAME, module:Object or file.py:Object
  srl repro FILE [--timeout-seconds N]
                          play what a run's errors/repro-*.json holds: does the env fail again?
  srl bench COMMAND NAME [--json F] [--a.b value ...]
                          measure: NAME is an experiment or a workload ('srl bench' lists both)
  srl bench scale         thousands of light clients against a real controller and trainers
  srl tune NAME [--seconds 120] [--out F.json] [--a.b value ...]
                          find how many actors, groups and threads suit this host; for --auto
  srl plan NAME|RUN [--cluster F.toml] [--recommend] [--costs F.json] [--seconds 60] [--again]
           [--json F] [--a.b value ...]
                          how fast it would be on a cluster; of a finished run: and how fast it was
  srl doctor [--sweep] [RUNS ...]
                          check installation and host; find what dead runs left here and
                          below RUNS (default: runs)

NAME is one of 'srl list', FAMILY/NAME of an env (gym/ANY-ID, atari/breakout, toy/recall: a
recipe by its spaces), module:Object or file.py:Object: a function that returns an
experiment, or an env of your own.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit code."""
    from srl.core.errors import SrlError

    _prepare()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if not words or words[0] in ("-h", "--help", "help") or words[1:] in (["-h"], ["--help"]):
        sys.stdout.write(USAGE)
        return 0 if words else 2
    if words[0] == "--version":
        from srl import __version__

        sys.stdout.write(f"srl {__version__}\n")
        return 0
    if words[0] not in COMMANDS:
        from srl.core.names import nearest

        return _refuse(f"unknown command {words[0]!r}{nearest(words[0], list(COMMANDS))}")
    try:
        return COMMANDS[words[0]](words[1:])
    except SrlError as error:
        return _refuse(str(error))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of the output has left; nothing more can be said to it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 3


def _prepare() -> None:
    """Make the process fit for work, however it was started."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # module:Object means the launch folder too, as in workers
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass  # 0 to 2 were closed: later files must not get these numbers
    os.close(descriptor)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without Unicode shows ? for γ


def _train(words: list[str]) -> int:
    from srl import api
    from srl.launch.graph.options import help_text

    name, options = _first(words, "srl train NAME")
    if "--help" in options or "-h" in options:
        sys.stdout.write(help_text(api.find_experiment(name), f"srl train {name}"))
        return 0
    wanted = [word for word in options if word.partition("=")[0] == "--auto"]
    if wanted:
        from srl.tools.tune import auto

        others = [word for word in options if word not in wanted]
        options = auto(name, others, wanted[-1].partition("=")[2] or None)
    experiment = api.find_experiment(name, options)
    return _finish(api.train_experiment(experiment, _view))


def _resume(words: list[str]) -> int:
    from srl import api
    from srl.tools.words import read_options

    path, words = _first(words, "srl resume RUN")
    own, options = read_options(words, {"from": str})
    checkpoint = own.get("from", api.LATEST)
    return _finish(api.resume_run(Path(path), options, _view, checkpoint))


def _eval(words: list[str]) -> int:
    from srl import api

    path, words = _first(words, "srl eval RUN")
    options = _options(words, "srl eval", {"episodes": int, "version": str})
    result = api.evaluate_run(path, **{"episodes": 100, **options})
    line = {
        "eval_return": result.mean,
        "episodes": len(result.returns),
        "lowest": min(result.returns, default=None),
        "highest": max(result.returns, default=None),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    return 0


def _play(words: list[str]) -> int:
    from srl import api

    path, words = _first(words, "srl play RUN")
    known = {"episodes": int, "version": str, "seed": int, "sampled": None, "video": str}
    options = _options(words, "srl play", known)
    for episode in api.play_run(path, **options):
        sys.stdout.write(f"{episode}\n")
        sys.stdout.flush()
    if "video" in options:
        sys.stdout.write(f"video: {options['video']}\n")
    return 0


def _versions(words: list[str]) -> int:
    from srl.core.errors import ConfigError
    from srl.launch.folder import RunFolder
    from srl.learning.versions import VersionStore
    from srl.tools.versions import choose_policy, table

    path, words = _first(words, "srl versions RUN")
    known = {"newest": int, "where": str, "tag": str, "policy": str}
    options = _options(words, "srl versions", known)
    store = VersionStore(RunFolder.open(Path(path)).versions)
    policy = choose_policy(store, options.get("policy"))
    if "tag" in options:
        name, equals, version = options["tag"].partition("=")
        if not (equals and version.isascii() and version.isdigit()):
            raise ConfigError(f"--tag is NAME=VERSION, got {options['tag']!r}")
        store.tag(policy, int(version), name)
    newest = options.get("newest")
    if newest is not None and newest < 1:
        raise ConfigError(f"--newest must be at least 1, got {newest}")
    condition = options.get("where", "version >= 0")
    found = store.where(condition, policy=policy, limit=newest)
    sys.stdout.write(table(found, store.tags(policy)))
    return 0


def _export(words: list[str]) -> int:
    from srl import api
    from srl.core.errors import ConfigError

    path, words = _first(words, "srl export RUN --format onnx|torch")
    known = {"format": str, "out": str, "version": str, "policy": str}
    options = _options(words, "srl export", known)
    if "format" not in options:
        raise ConfigError("srl export needs --format onnx or --format torch")
    written = api.export_run(path, **options)
    sys.stdout.write(f"{written}\n")
    return 0


def _compare(words: list[str]) -> int:
    from srl.tools.compare.command import main as run

    return run(words)


def _list(words: list[str]) -> int:
    from srl import catalog
    from srl.core.errors import ConfigError

    if words:
        raise ConfigError(f"srl list takes no arguments, got {' '.join(words)}")
    lines = ["experiments:", *(f"  {name}" for name in catalog.EXPERIMENTS)]
    lines += ["env families; FAMILY/NAME is an experiment too, with a recipe by its spaces:"]
    lines += [f"  {family}/..." for family in catalog.ENVS]
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _explain(words: list[str]) -> int:
    from srl import api
    from srl.launch.graph.explain import explain

    name, options = _first(words, "srl explain NAME")
    experiment = api.find_experiment(name, options)
    api.check_devices(experiment)
    sys.stdout.write(explain(experiment))
    return 0


def _inspect(words: list[str]) -> int:
    from srl.launch.inspect import inspect

    path, words = _first(words, "srl inspect RUN|CHECKPOINT")
    options = _options(words, "srl inspect", {"verify": None})
    sys.stdout.write(inspect(Path(path), verify="verify" in options))
    return 0


def _check_env(words: list[str]) -> int:
    from srl.tools.check_env import check, find_env, with_options

    name, options = _first(words, "srl check-env NAME")
    config, seed = with_options(find_env(name), options)
    has_problem = False
    for finding in check(config, seed=seed):
        sys.stdout.write(f"{finding}\n")
        sys.stdout.flush()
        has_problem |= finding.level == "problem"
    return 3 if has_problem else 0


def _repro(words: list[str]) -> int:
    from srl.tools.repro import replay

    path, words = _first(words, "srl repro FILE")
    options = _options(words, "srl repro", {"timeout-seconds": float})
    return replay(Path(path), options.get("timeout-seconds"))


def _bench(words: list[str]) -> int:
    from srl.tools.bench.command import main as run

    return run(words)


def _tune(words: list[str]) -> int:
    from srl.tools.tune import main as run

    return run(words)


def _plan(words: list[str]) -> int:
    from srl.tools.planning.command import main as run

    return run(words)


def _doctor(words: list[str]) -> int:
    from srl.core.errors import ConfigError
    from srl.tools.doctor import examine, leftovers

    options = [word for word in words if word.startswith("-")]
    if any(option != "--sweep" for option in options):
        raise ConfigError(f"srl doctor takes --sweep and paths, got {' '.join(options)}")
    paths = [Path(word) for word in words if not word.startswith("-")]
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"{path} is not a folder")
    needs_attention = False
    for findings in (
        examine(),
        leftovers(paths or [Path("runs")], is_sweeping="--sweep" in options),
    ):
        for finding in findings:
            sys.stdout.write(f"{finding}\n")
            needs_attention |= finding.level == "attention"
    return 1 if needs_attention else 0


COMMANDS: dict[str, Callable[[list[str]], int]] = {
    "train": _train,
    "resume": _resume,
    "eval": _eval,
    "play": _play,
    "versions": _versions,
    "export": _export,
    "compare": _compare,
    "list": _list,
    "explain": _explain,
    "inspect": _inspect,
    "check-env": _check_env,
    "repro": _repro,
    "bench": _bench,
    "tune": _tune,
    "plan": _plan,
    "doctor": _doctor,
}


def _first(words: list[str], usage: str) -> tuple[str, list[str]]:
    from srl.tools.words import read_name

    return read_name(words, usage)


def _options(words: list[str], usage: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a command that takes no others."""
    from srl.core.errors import ConfigError
    from srl.core.names import nearest
    from srl.tools.words import read_options

    found, others = read_options(words, known)
    if others:
        word = others[0].partition("=")[0]
        takes = ", ".join(f"--{option}" for option in known)
        hint = nearest(word.removeprefix("--"), list(known))
        raise ConfigError(f"{usage} takes {takes}, got {word!r}{hint}")
    return found


def _view(experiment: Any) -> Any:
    from srl.telemetry.view import make_view

    view = make_view(experiment.name, experiment.stop.env_steps)
    view.say(f"{experiment.name}: launcher {experiment.launcher}, seed {experiment.seed}")
    return view


def _finish(run: Any) -> int:
    """Say how the run ended; the exit code."""
    summary = run.summary
    facts = ("status", "reason", "env_steps", "seconds", "mean_return", "eval_return")
    shown = {k: summary[k] for k in facts} | {"folder": str(run.folder)}
    sys.stdout.write(json.dumps(shown) + "\n")
    if summary["status"] == "failed":
        return 3
    if summary["status"] == "interrupted":
        return 130 if "SIGINT" in summary["reason"] else 0
    try:
        config = json.loads((run.folder / "config.json").read_text())
    except OSError as error:
        sys.stderr.write(f"srl: the run folder is gone, and what was learned with it: {error}\n")
        return 3
    wanted, is_judged = config["stop"]["return_"], config["evaluation"]["episodes"] > 0
    what = "the final evaluation" if is_judged else "the mean return of the last episodes"
    reached = summary["eval_return" if is_judged else "mean_return"]
    if wanted is not None and not (reached is not None and reached >= wanted):
        verb = "gave" if is_judged else "is"
        sys.stderr.write(f"{what} {verb} {reached}, asked for {wanted}\n")
        return 1
    return 0


def _refuse(message: str) -> int:
    sys.stderr.write(f"srl: {message}\n")
    return 2


if __name__ == "__main__":
    sys.exit(main())

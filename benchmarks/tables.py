"""Writes what was measured into docs/algorithms: tables and curves, from the JSON files beside this one.

    python benchmarks/tables.py

Between `<!-- measured: NAME ... -->` and `<!-- end -->` of a page stands what is written here, and nothing else is: no number
there is typed by hand. NAME is one of TABLES; or recipes of learn.py's set `algorithms`, a table of them and their curves; or
`curve` and recipes, their curves alone.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from srl.tools.bench.plot import write_lines

HERE = Path(__file__).parent
PAGES = HERE.parent / "docs" / "algorithms"
BLOCK = re.compile(r"(<!-- measured: (.*?) -->\n).*?(<!-- end -->)", re.S)
PONG = ("pong", "pong-appo", "pong-rainbow", "pong-apex")
CLEANRL = {
    "cartpole-ppo": "490 ± 6",
    "cartpole-dqn": "489 ± 16",
    "half-cheetah-sac": "9,635 ± 1,424",
    "half-cheetah-td3": "9,583 ± 126",
}
"""Episodic returns as its documentation gives them (docs.cleanrl.dev/rl-algorithms), after five and ten times as many env steps."""


def main() -> None:
    for path, text in pages().items():
        path.write_text(text)
    (PAGES / "curves").mkdir(exist_ok=True)
    for case, entry in recipes().items():
        draw(PAGES / "curves" / f"{case}.svg", case, entry["runs"])
    for recipe in PONG:
        if found := read(recipe):
            curve = [(steps, mean) for steps, _, mean in found["curve"]]
            run = {"seed": found["seed"], "curve": curve}
            draw(PAGES / "curves" / f"{recipe}.svg", recipe, [run])


def read(name: str) -> dict[str, Any]:
    """A file of results; nothing where there is none yet."""
    file = HERE / f"{name}.json"
    return json.loads(file.read_text()) if file.exists() else {}


def recipes() -> dict[str, Any]:
    """Recipe to what was measured of it, where something was."""
    found = read("algorithms")
    if (ppo := read("learn")) and "cartpole inline" in ppo:
        found["cartpole"] = ppo["cartpole inline"]
    return {case: entry for case, entry in found.items() if entry["runs"]}


def pages() -> dict[Path, str]:
    """Every page, as it is with what the files of results say."""
    return {path: filled(path.read_text()) for path in sorted(PAGES.glob("*.md"))}


def filled(text: str) -> str:
    def fill(block: re.Match[str]) -> str:
        names = block[2].split()
        if names[0] in TABLES:
            made = TABLES[names[0]]()
        elif names[0] == "curve":
            made = curves(names[1:])
        else:
            made = f"{of_recipes(names)}\n\n{curves(names)}".rstrip()
        return f"{block[1]}{made}\n{block[3]}"

    return BLOCK.sub(fill, text)


def table(head: Sequence[str], rows: Sequence[Sequence[str]], command: str) -> str:
    if not rows:
        return f"Not measured yet: `{command}`."
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def recipe_row(case: str, entry: Mapping[str, Any]) -> list[str]:
    runs, wanted = entry["runs"], entry.get("wanted")
    passed = [run.get("reached_at") for run in runs]
    after = ", ".join("never" if steps is None else f"{steps / 1000:.0f}k" for steps in passed)
    return [
        f"`{case}`",
        f"{max(run['env_steps'] for run in runs) / 1000:.0f}k",
        "" if wanted is None else number(wanted),
        ", ".join(number(run["eval_return"]) for run in runs),
        "" if wanted is None else after,
        f"{max(run['seconds'] for run in runs):.0f} s",
    ]


RECIPE = (
    "recipe",
    "env steps",
    "wanted",
    "return, each seed",
    "training was there after",
    "longest run",
)


def algorithms() -> str:
    """Every recipe, and how long all of it took."""
    found = {case: entry for case, entry in recipes().items() if case != "cartpole"}
    runs = [run for entry in found.values() for run in entry["runs"]]
    made = table(RECIPE, [recipe_row(*item) for item in found.items()], "make learn")
    if not runs:
        return made
    minutes = sum(run["seconds"] for run in runs) / 60
    cores = sorted({run["host"]["cores"] for run in runs})
    where = " and ".join(f"{number} cores" for number in cores)
    return f"{made}\n\n{len(runs)} runs, {minutes:,.0f} minutes of one core, on hosts with {where}."


def of_recipes(cases: Sequence[str]) -> str:
    found = [(case, entry) for case, entry in recipes().items() if case in cases]
    return table(RECIPE, [recipe_row(*item) for item in found], "make learn")


def curves(cases: Sequence[str]) -> str:
    found = recipes()
    shown = [case for case in cases if case in found]
    return "\n".join(image(case) for case in shown)


def image(case: str) -> str:
    return f"![{case}: return over env steps](curves/{case}.svg)"


def beside_sb3() -> str:
    rows = []
    for case, entry in read("beside_sb3").get("cases", {}).items():
        if "result" not in entry:
            continue
        found = entry["result"]
        sides = [
            f"{number(found[f'{side}_mean'])} ({number(low)} to {number(high)})"
            for side in ("srl", "sb3")
            for low, high in [found[f"{side}_interval"]]
        ]
        steps = f"{entry['env_steps'] / 1000:.0f}k"
        seeds = " and ".join(dict.fromkeys(str(len(entry[side])) for side in ("srl", "sb3")))
        verdict = "yes" if found["holds"] else "no"
        rows.append([f"`{case}`", steps, seeds, *sides, verdict, CLEANRL.get(case, "")])
    head = ("case", "env steps", "seeds", "ours", "SB3", "within or above", "CleanRL")
    return table(head, rows, "python benchmarks/beside_sb3.py")


def staleness() -> str:
    cells = read("staleness")
    kinds = dict.fromkeys(name.partition(",")[0] for name, cell in cells.items() if cell["runs"])
    steps = sorted({name.rpartition(" ")[2] for name in cells}, key=int)
    rows = []
    for kind in kinds:
        row = [f"`{kind}`"]
        for step in steps:
            runs = cells.get(f"{kind}, staleness {step}", {"runs": []})["runs"]
            best, sampled = (
                ", ".join(number(run[name]) for run in runs)
                for name in ("eval_return", "mean_return")
            )
            old = sum(run["staleness_mean"] for run in runs) / max(1, len(runs))
            row.append(f"{best}; training {sampled} (mean age {old:.1f})" if runs else "")
        rows.append(row)
    head = ("", *(f"`--max-staleness {step}`" for step in steps))
    return table(head, rows, "python benchmarks/staleness.py")


def pong() -> str:
    rows = []
    for recipe in PONG:
        if not (found := read(recipe)):
            continue
        first, judged = found["reached_18_at"], found.get("evaluated_18_at")
        last = found["eval_return"]
        if last is None:
            last = found.get("evaluated_afterwards", {}).get("return")
        host = found["host"]
        rows.append(
            [
                f"`{recipe}`",
                f"{host['cores']} cores, {host['gpu']}",
                millions(first and first["env_steps"])
                + (f", {first['seconds']:.0f} s" if first else ""),
                millions(judged),
                number(found["mean_return"]),
                "" if last is None else number(last),
                f"{found['env_steps'] / 1e6:.1f}M in {found['seconds'] / 60:.1f} min",
                f"{found['env_steps_per_second']:,.0f}",
            ]
        )
    head = (
        "recipe",
        "host",
        "training at 18 after",
        "evaluation at 18 after",
        "training at last",
        "last evaluation",
        "in all",
        "env steps/s",
    )
    made = table(head, rows, "python benchmarks/pong.py RECIPE")
    shown = [image(recipe) for recipe in PONG if read(recipe)]
    return "\n\n".join([made, "\n".join(shown)]) if shown else made


def number(x: float) -> str:
    """To four digits, and whole from a thousand on."""
    return f"{x:,.0f}" if abs(x) >= 1000 else f"{x:.4g}"


def millions(steps: int | None) -> str:
    return "" if steps is None else f"{steps / 1e6:.2f}M"


def draw(path: Path, case: str, runs: Sequence[Mapping[str, Any]]) -> None:
    """The curve of each seed: the mean return of the last 100 training episodes."""
    lines = {
        f"seed {run['seed']}": [(x, y) for x, y in run["curve"] if y is not None] for run in runs
    }
    write_lines(path, case, lines, x="env steps", y="mean return in training", linear=True)


TABLES = {
    "algorithms": algorithms,
    "beside_sb3": beside_sb3,
    "staleness": staleness,
    "pong": pong,
}

if __name__ == "__main__":
    main()

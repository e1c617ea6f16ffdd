"""Chapter 11: its totals say what they count, its recipes are commands we understand."""

import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import bench_scaling
from mlmjoint.analysis import costs
from mlmjoint.cli import main as cli
from mlmjoint.cli.study import plans
from mlmjoint.notebook import print_sheet

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = (ROOT / "notebooks" / "11_cost.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def cell_hours(gpu, work, share=0.5) -> list[float]:
    """GPU hours of each of the paper's cells: the tables and, if any, one of the works."""
    traffic = 28_996**2 * costs.measured("scaling")["traffic"][work] if work else 0
    rows = costs.paper_cells()
    return [sum(costs.gpu_hours(1000, row["fast"], traffic, gpu, share)) for row in rows]


def test_each_total_of_hours_says_what_it_counts(capsys):
    """Chapter 11 and the benchmark on the paper's cells, on cores and on GPUs."""
    section = CHAPTER.split("## The paper's eight cells")[1].split("\n## ")[0]
    cells = re.findall(r"^```{code-cell} ipython3\n(.*?)^```", section, re.M | re.S)
    chapter = SimpleNamespace(record=lambda *args, **kwargs: None)
    known = {"costs": costs, "print_sheet": print_sheet, "chapter": chapter}
    exec("\n".join(cells), known | {"data": costs.measured("scaling")})
    shown = capsys.readouterr().out
    found = re.findall(r"^(.+): ([\d,]+) core hours$", shown, re.M)
    works = [f"with {work}" for work in costs.WORKS.values()]
    assert [what for what, _ in found] == ["eight cells, tables alone", *works]
    tables, five, record = (int(hours.replace(",", "")) for _, hours in found)
    assert tables < five < record
    scan = bench_scaling.estimate(costs.measured("scaling"))
    assert re.findall(r"([\d,]+) in all", scan) == [hours for _, hours in found]
    rows = re.findall(r"^(\S+ \S+) +(\d+) +(\d+) +(\d+)$", shown.split("with record")[1], re.M)
    assert [name for name, *_ in rows] == [f"{gpu.name} {gpu.dtype}" for gpu in costs.GPUS]
    for gpu, row in zip(costs.GPUS, rows, strict=True):
        for work, hours in zip((None, *costs.WORKS), row[1:], strict=True):
            assert float(hours) == pytest.approx(sum(cell_hours(gpu, work)), abs=0.51)


def parsed(command: str) -> dict:
    """The studies of a `study ...` command, by their folders."""
    return plans(cli.build_parser("study").parse_args(shlex.split(command)))


def by_make() -> list:
    """Each study that `make paper` runs."""
    (command,) = re.findall(r"^\t\$\(BIN\)/mlmjoint (study .+) \$\(STUDY\)$", MAKEFILE, re.M)
    return list(parsed(command).values())


class TestRecipes:
    """The scaling advice of chapter 11: every script parses, every command is one we understand."""

    def blocks(self, language: str) -> list[str]:
        return re.findall(rf"^```{language}\n(.*?)^```", CHAPTER, re.M | re.S)

    def script(self, line: str) -> str:
        (found,) = (block for block in self.blocks("bash") if line in block)
        return found

    def test_shell_accepts_every_block_and_we_every_study(self):
        assert len(self.blocks("bash")) == 4
        for block in self.blocks("bash"):
            subprocess.run(["bash", "-n"], input=block, text=True, check=True)
        joined = "\n".join(self.blocks("bash")).replace("\\\n", " ")
        commands = re.findall(r"mlmjoint study ([^'\n]+)", joined)
        assert len(commands) == 4
        for command in commands:
            command = command.replace("$pairs", "random")
            ((out, plan),) = parsed(f"study {command}").items()
            assert plan.n == 1000 and out
            # Otherwise its records and those of `make paper` would refuse each other.
            for option in ("seed", "methods", "extras", "as_published", "dtype"):
                for other in by_make():
                    assert getattr(plan, option) == getattr(other, option), command

    def test_job_array_asks_for_the_time_of_the_largest_cell(self):
        hours = int(re.search(r"--time=(\d+):00:00", self.script("--array=0-7"))[1])
        assert hours > max(max(cell_hours(gpu, "study")) for gpu in costs.GPUS)

    def test_job_array_names_the_eight_cells_of_the_paper(self):
        script = 'mlmjoint() { echo "$@"; }\n' + self.script("--array=0-7")
        out, how = [], {"input": script, "text": True, "capture_output": True, "check": True}
        for index in range(8):
            done = subprocess.run(["bash", "-eu"], env={"SLURM_ARRAY_TASK_ID": str(index)}, **how)
            ((folder, plan),) = parsed(done.stdout).items()
            assert folder == f"results/paper/{plan.name}"
            out.append(plan)
        assert out == by_make()

    def test_ray_knows_the_options_of_the_multi_node_job_and_accepts_the_cluster_file(self):
        ray = pytest.importorskip("ray.scripts.scripts")
        script = self.script("symmetric-run")
        known = {opt for p in (*ray.start.params, *ray.symmetric_run.params) for opt in p.opts}
        command = script[script.index("symmetric-run") : script.index(" -- ")]
        used = re.findall(r"--[a-z-]+", command)
        assert used and set(used) <= known
        from ray.autoscaler._private.util import prepare_config, validate_config

        yaml = pytest.importorskip("yaml")
        (block,) = self.blocks("yaml")
        config = prepare_config(yaml.safe_load(block))
        validate_config(config)
        version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
        assert f"@v{version[1]}" in block

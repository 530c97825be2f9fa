"""``recycle doctor``: a Megatron command line, judged without Megatron."""

import json
import os
import subprocess
import sys

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.examples import QUICK
from recycle.cli.diagnosis import added_options, diagnose
from recycle.job import Job, Stage
from recycle.megatron.flag.command import command_line
from recycle.megatron.flag.command.command_line import read_command_line
from recycle.megatron.flag.command.megatron_options import known_options
from recycle.plan.mode import Mode
from recycle.planner.catalogue import make_catalogue

GOOD = (
    *("pretrain_gpt.py", "--tensor-model-parallel-size", "2", "--pipeline-model-parallel-size", "4"),
    *("--micro-batch-size", "1", "--global-batch-size", "18", "--transformer-impl", "local"),
    *("--no-gradient-accumulation-fusion", "--distributed-backend", "gloo", "--recycle-budget", "100ms"),
)
FUSED = tuple(each for each in GOOD if each != "--no-gradient-accumulation-fusion")
"""The same job, whose layers add up weight gradients themselves."""

GROWING = ("--rampup-batch-size",)
EXTERNAL = ("--dataloader-type", "external")


def test_a_job_that_works_is_planned_and_its_failures_are_priced(ran):
    out = ran("doctor", "torchrun", "--nnodes", "3", "--nproc_per_node", "8", *GOOD, "--bf16", "--seed", "7")
    assert "3 pipelines x 4 stages x 6 micro-batches; 2 ranks per server, 24 in all" in out
    assert "tied embeddings; bf16; gradient clipping at 1; dropout" in out
    assert "refused" not in out
    assert "fused" not in out
    assert "period 27 slots with all servers" in out


def test_the_figures_are_those_of_plans(run):
    status, out, _ = run("doctor", "--ranks", 24, "--json", *GOOD, "--recycle-dead", "W1_2")
    report = json.loads(out)
    assert status == 0
    plan = report["plan"]
    assert plan["dead"] == ["W1_2"]
    assert plan["period"] == 29
    assert plan["of_before"] == plan["throughput"] == pytest.approx(27 / 29)
    assert [each["stage"] for each in plan["failures"]] == [0, 1, 2, 3]
    assert plan["failures"][2]["period"] == 29


def test_a_word_that_is_no_utf_8_is_reported(run):
    word = os.fsdecode(b"--se\xffed")
    report = json.loads(run("doctor", "--json", "--ranks", 24, *GOOD, word, 7)[1])
    assert "--se\ufffded" in [each["word"] for each in report["unread"]]


def test_what_decides_is_said_for_programs(run):
    good = [each for each in GOOD if not each.startswith("--tensor")]
    good.remove("2")
    words = ["doctor", "--json", "--ranks-per-host", 4, "--ranks", 12, *good]
    report = json.loads(run(*words)[1])
    keys = ("runs", "survives_process", "survives_host", "split", "refused", "unread")
    assert [report[key] for key in keys] == [True, True, False, True, [], []]
    assert report["exposed_stages"] == [0, 3]
    lines = run("doctor", *words[2:])[1]
    assert "not the loss of a host: with 4 ranks on each, one has all servers of stage 0, 3; --use-tp" in lines
    assert json.loads(run(*words, "--use-tp-pp-dp-mapping")[1])["survives_host"] is True
    report = json.loads(run(*words, "--context-parallel-size", "1", *EXTERNAL)[1])
    assert report["runs"] is report["survives_process"] is report["survives_host"] is False
    (refused,) = report["refused"]
    assert refused["flag"] == "--dataloader-type"
    assert refused["remedy"] == "use single"
    report = json.loads(run("doctor", "--json", "--ranks", 24, *GOOD)[1])
    assert (report["runs"], report["survives_process"]) == (True, True)
    report = json.loads(run("doctor", "--json", "--ranks", 24, *GOOD, "--sequence-parallel")[1])
    assert (report["runs"], report["survives_process"], report["split"]) == (True, True, True)
    report = json.loads(run("doctor", "--json", "--ranks", 24, *FUSED)[1])
    assert (report["runs"], report["survives_process"], report["split"]) == (True, True, False)
    assert len(report["fused"]) == 1
    assert report["plan"]["failures"][2]["period"] > 29
    report = json.loads(run("doctor", "--json", "--ranks", 8, *GOOD)[1])
    assert (report["runs"], report["survives_process"]) == (True, False)
    assert report["unprotected"] == "with one pipeline there are no peers"


def test_what_changes_no_result_is_left_out_and_not_refused(run, ran):
    words = (*GOOD, "--delay-wgrad-compute", "--num-distributed-optimizer-instances", 2, "--async-save")
    out = ran("doctor", "--ranks", 24, *words, "--use-distributed-optimizer")
    assert "left out   --delay-wgrad-compute: a plan says when" in out
    assert "left out   --num-distributed-optimizer-instances: peers hold each shard twice as it is" in out
    assert "left out   --async-save: checkpoints are written before training goes on" in out
    assert "unread" not in out
    report = json.loads(run("doctor", "--json", "--ranks", 24, *GOOD, "--num-distributed-optimizer-instances=2")[1])
    assert report["left_out"] == ["--num-distributed-optimizer-instances"]
    assert json.loads(run("doctor", "--json", "--ranks", 8, *words)[1])["left_out"] == []
    assert report["unread"] == []


def test_options_alone_may_have_a_value_that_is_called_like_a_script(ran):
    out = ran("doctor", "--ranks", 24, "--", *GOOD[1:], "--async-save", "--tokenizer-model", "t.py")
    assert "left out   --async-save: checkpoints are written before training goes on" in out
    assert "unread" not in out


def test_batches_that_grow_are_planned_for(run, ran):
    words = ("doctor", "--ranks", 24, *GOOD, *GROWING, 6, 6, 100)
    assert "batches that grow from 2 to 6 micro-batches per pipeline" in " ".join(ran(*words).split())
    assert json.loads(run("doctor", "--json", *words[1:])[1])["plan"]["growth"] == [2, 4, 6]
    report = json.loads(run("doctor", "--json", "--megatron", "0.18.2", *words[1:])[1])
    assert report["runs"] is True
    assert report["plan"]["growth"] == []
    assert [each["word"] for each in report["ignored"]] == ["--rampup-batch-size"]
    by_iterations = ("doctor", "--json", "--megatron", "0.18.2", *words[1:], "--train-iters", 9)
    assert json.loads(run(*by_iterations)[1])["refused"] == []
    (refused,) = json.loads(run(*by_iterations, "--recycle-stagger")[1])["refused"]
    assert refused["reason"] == "redone iterations would have other batches"


def test_with_experts_a_server_is_their_whole_group(ran, refused):
    experts = ("--num-experts", "6", "--expert-model-parallel-size", "3", "--sequence-parallel")
    out = ran("doctor", "--ranks", 48, *GOOD, *experts)
    assert "2 pipelines x 4 stages x 3 micro-batches; 6 ranks per server, 48 in all" in out
    assert "experts among 6 ranks, which are lost together, of 3 of Megatron's 6 pipelines" in " ".join(out.split())
    err = refused("doctor", "--ranks", 32, *GOOD, *experts)
    assert "32 ranks are no multiple of 24, the 6 that compute together with their experts" in err


def test_what_nobody_has_run_is_said_and_its_ranks_are_one_server(run, ran):
    words = ("--context-parallel-size", 3, "--cp-comm-type", "p2p", "--transformer-impl", "transformer_engine")
    out = ran("doctor", "--ranks", 48, *GOOD, *words)
    assert "2 pipelines x 4 stages x 9 micro-batches; 6 ranks per server, 48 in all" in out
    assert "read only  --context-parallel-size: its layers need CUDA" in out
    (found,) = json.loads(run("doctor", "--json", "--ranks", 48, *GOOD, *words)[1])["read_only"]
    assert found["flag"] == "--context-parallel-size"
    eight_bits = ("--fp8-format", "hybrid", "--fp8-recipe", "tensorwise", *words[-2:])
    assert "read only  --fp8-format: its layers need CUDA" in ran("doctor", "--ranks", 24, *GOOD, *eight_bits)
    flexible = ("--num-experts", 4, "--expert-model-parallel-size", 2, "--sequence-parallel")
    out = ran("doctor", "--ranks", 48, *GOOD, *flexible, "--moe-token-dispatcher-type", "flex")
    assert "read only  --moe-token-dispatcher-type: DeepEP and HybridEP need CUDA" in out


@pytest.mark.parametrize(
    "words",
    [
        ("--num-layers", "16", "--num-layers-per-virtual-pipeline-stage", "2"),
        ("--num-virtual-stages-per-pipeline-rank", "2"),
        ("--pipeline-model-parallel-layout", "Et|(tt|)*6L"),
        ("--hybrid-layer-pattern", "M*|M-|M*|M-|M*|M-|M*|M-"),
    ],
)
def test_virtual_stages_are_counted_and_planned(run, ran, words):
    out = ran("doctor", "--ranks", 24, *GOOD, *words)
    assert "3 pipelines x 4 stages of 2 virtual ones each x 6 micro-batches" in out
    assert "a plan in the place of Megatron's interleaved schedule" in " ".join(out.split())
    (refused,) = json.loads(run("doctor", "--json", "--ranks", 24, *GOOD, *words, "--recycle-stagger")[1])["refused"]
    assert refused["flag"] == words[-2]


def test_the_first_host_is_lost_with_the_store_unless_that_is_etcd(run, monkeypatch):
    """And a job on one host does not survive the loss of a host in any case."""
    monkeypatch.delenv("RECYCLE_STORE", raising=False)

    def survives(*words):
        report = json.loads(run("doctor", "--json", *words)[1])
        (line,) = [each for each in run("doctor", *words)[1].splitlines() if each.startswith("survives")]
        return report["survives_host"], report["survives_first_host"], line.removeprefix("survives").strip()

    several = ("torchrun", "--nnodes", 3, "--nproc-per-node", 8, *GOOD, MAPPED)
    any_host = (True, True, "the death of a process, and the loss of a host")
    but_first = f"{any_host[2]} but the first, which has the store; --recycle-store changes that"
    assert survives(*several) == (True, False, but_first)
    assert survives(*several, "--recycle-store", "etcd://a,b,c") == any_host
    torn = ("--ranks-per-host", 4, *job_of(6, 2, 8, "--num-layers", 8, *QUICKLY), "--use-distributed-optimizer")
    *_, line = survives(*torn)
    assert line.endswith(f"; {MAPPED} changes that but for the first host, which has the store")
    one = ("torchrun", "--nproc-per-node", 24, *GOOD)
    host, first, line = survives(*one)
    assert (host, first) == (False, False)
    assert line.endswith("one has all servers of stage 0, 1, 2, 3")
    monkeypatch.setenv("RECYCLE_STORE", "etcd://a,b,c")
    assert survives(*several) == any_host
    *_, line = survives(*torn)
    assert line.endswith(f"; {MAPPED} changes that")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--pipeline-model-paralel-size", "8"], "did you mean --pipeline-model-parallel-size?"),
        (["--quite-another-thing", "1", "2"], "does not know it, unless the script adds it"),
        (["--bf16", "true"], "true: no option before it takes this value"),
        (["--inference-max-batch-size", "4"], "Megatron 0.17.1 does not know it, and 0.16.1 does"),
    ],
)
def test_words_that_nobody_reads_are_named_and_end_the_job(run, arguments, message):
    status, out, _ = run("doctor", "--megatron", "0.17.1", "--ranks", 24, *GOOD, *arguments)
    assert status == 1
    assert "runs       no" in out
    (line,) = [each for each in out.splitlines() if each.startswith("unread")]
    assert message in line


def test_beside_a_misspelt_option_no_plan_is_shown(run):
    """The word may be the size of the job, so that a plan would be another job's."""
    words = ("doctor", "--megatron", "0.17.1", "--ranks", 24, *GOOD, "--pipeline-model-paralel-size", "8")
    status, out, _ = run(*words)
    assert status == 1
    starts = [each.split()[0] for each in out.splitlines() if each[:1].strip()]
    assert not {"job", "survives", "memory", "failures", "instead"} & set(starts)
    assert "period" not in out
    assert "correct the unread words first" in " ".join(out.split())
    status, out, _ = run("doctor", "--json", *words[1:])
    assert (status, json.loads(out)["plan"]) == (1, None)


@hypothesis.settings(max_examples=30)
@given(
    option=st.sampled_from(sorted(known_options())),
    place=st.integers(3, 40),
    kind=st.sampled_from("-x+"),
    data=st.data(),
)
def test_an_option_with_a_letter_too_few_too_many_or_another_is_an_error(option, place, kind, data):
    place = min(place, len(option) - 1)
    letter = "" if kind == "-" else data.draw(st.sampled_from("aeqz"))
    misspelt = option[:place] + letter + option[place + (kind != "+") :]
    hypothesis.assume(misspelt not in known_options())
    release = known_options()[option].releases[-1]
    line = read_command_line([*GOOD, misspelt], 24)
    assert [each.word for each in diagnose(line, None, release).unread] == [misspelt]


def test_options_that_the_script_adds_are_known_where_it_can_be_read(run, tmp_path, monkeypatch):
    script, module, package = tmp_path / "train.py", tmp_path / "models" / "own.py", tmp_path / "more" / "__init__.py"
    module.parent.mkdir()
    package.parent.mkdir()
    script.write_text("from . import beside\nimport os, more\nfrom .models.own import add\nadd('--own-width')\n")
    module.write_text("def add(parser):\n    parser.add_argument('--own-depth')\n")
    package.write_text("add('--own-height')\n")
    words = ("--own-width", 3, "--own-depth", 4, "--own-height", 5)
    assert run("doctor", "--ranks", 24, script, *GOOD[1:], *words)[0] == 0
    monkeypatch.chdir(tmp_path)
    assert run("doctor", "--ranks", 24, script.name, *GOOD[1:], *words)[0] == 0
    status, out, _ = run("doctor", "--ranks", 24, script, *GOOD[1:], *words, "--own-wdith", 3)
    assert status == 1
    assert [each.split()[1] for each in out.splitlines() if each.startswith("unread")] == ["--own-wdith:"]
    assert "train.py here" not in out
    _, out, _ = run("doctor", "--ranks", 24, tmp_path / "gone.py", *GOOD[1:], *words)
    assert "gone.py here" in " ".join(out.split())


def test_a_pipe_beside_the_script_is_not_waited_for(tmp_path):
    (tmp_path / "train.py").write_text("add('--own-width')\n")
    os.mkfifo(tmp_path / "pipe.py")
    assert added_options(tmp_path / "train.py") == {"--own-width"}


@pytest.mark.parametrize("option", ["--nnode", "--nodes", "--nproc-per-nod"])
def test_what_torchrun_would_complete_or_refuse_is_an_error(run, option):
    words = ("torchrun", "--nproc_per_node", 8, option, 3, *GOOD)
    status, out, _ = run("doctor", "--ranks", 24, *words)
    assert status == 1
    assert f"unread     {option}: did you mean --n" in out


@pytest.mark.parametrize(
    "start", [("torchrun", "--nproc-per-node", 8, "-m", "job.pretrain"), ("--ranks", 8, "./pretrain"), ("python", "-m")]
)
def test_where_no_file_of_a_script_is_named_its_options_are_asked_for_alone(run, refused, start):
    words = [each for each in GOOD[1:] if each not in ("--tensor-model-parallel-size", "2")]
    err = refused("doctor", *start, *words, "--global-batch-size", 16)
    assert "no script's file (.py) is named" in err
    assert "or give --ranks, then -- and Megatron's options alone" in err
    assert run("doctor", "--ranks", 8, "--", *words, "--global-batch-size", 16)[0] == 0


def test_a_misspelt_option_of_the_doctor_is_no_part_of_the_job(refused):
    assert "No such option '--rank'" in refused("doctor", "--rank", 24, *GOOD)


def test_a_job_that_is_too_large_is_refused_before_its_servers_are_listed(refused, monkeypatch):
    monkeypatch.setattr(Job, "dead_servers", lambda *_: pytest.fail("servers are listed"))
    words = ("--num-layers", 4, "--pipeline-model-parallel-size", 2, "--micro-batch-size", 1)
    err = refused("doctor", "--ranks", 8, "pretrain_gpt.py", *words, "--global-batch-size", 10**8)
    assert "4 pipelines x 2 stages x 25000000 micro-batches are 600000000 tasks" in err
    monkeypatch.setattr(command_line, "_growth", lambda *_: pytest.fail("the sizes of batches are listed"))
    words = ("--micro-batch-size", 1, "--global-batch-size", 10**11, "--rampup-batch-size", 1, 1, 9)
    assert "100000000000 micro-batches are" in refused("doctor", "--ranks", 1, "pretrain_gpt.py", *words)


def test_a_release_that_is_not_known_is_refused(refused):
    err = refused("doctor", "--megatron", "0.1", "--ranks", 24, *GOOD)
    assert "Megatron 0.1: the options of 0.16.1, 0.17.1, 0.18.0, 0.18.2, 0.19.0, 0.19.1, 0.19.2 are known" in err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("--use-distributed-optimizer --recycle-exact", "--use-distributed-optimizer: a step cannot be taken back"),
        (
            "--use-distributed-optimizer --save x --save-interval 9 --ckpt-format torch_dcp",
            "--ckpt-format: it is not known how a shard",
        ),
        ("--moe-router-load-balancing-type aux_loss global_aux_loss", "--moe-router-load-balancing-type: "),
        ("--rampup-batch-size 3 3 100 --recycle-stagger", "--rampup-batch-size: redone iterations would have"),
        (
            "--recycle-keep-in-memory copies=2 --tensor-model-parallel-size 1 --fp16",
            "--fp16: after the loss of a stage, all redo a step",
        ),
        (
            "--recycle-keep-in-memory copies=2 --tensor-model-parallel-size 1 --optimizer lion",
            "--optimizer: it is not known what its state consists of",
        ),
        (
            "--recycle-keep-in-memory parity=2+1 --tensor-model-parallel-size 1 --recycle-exact --fp16",
            "--fp16: whether a step is skipped is known only",
        ),
        ("--recycle-keep-in-memory copies=4", "--recycle-keep-in-memory: it takes 4 hosts, and this run has 3"),
        ("--recycle-keep-in-memory parity=2+2", "--recycle-keep-in-memory: it takes 4 hosts, and this run has 3"),
        ("--hybrid-layer-pattern M*|M*|M*|M*/MM/MM", "--hybrid-layer-pattern: losses of multi-token prediction"),
        ("--hybrid-layer-pattern M*|M*|M*|M*|M*", "--hybrid-layer-pattern: its 5 stages do not divide among 4"),
        ("--hybrid-layer-pattern M*M*M --num-layers 8", "--num-layers: 5 layers do not divide among 4 stages"),
        ("--num-layers 30", "--num-layers: 30 layers do not divide among 4 stages"),
        ("--num-attention-heads 5", "--num-attention-heads: 5 is no multiple of 2, the tensor-parallel size"),
        ("--rampup-batch-size 6 6 100 --train-iters 9", "--rampup-batch-size: Megatron counts samples"),
        (
            "--hidden-size 1000 --num-attention-heads 16",
            "--hidden-size: 1000 is no multiple of 16, the number of atten",
        ),
        ("--cuda-graph-impl local", "--cuda-graph-impl: "),
        ("--dataloader-type external", "--dataloader-type: "),
    ],
)
def test_what_is_refused_is_said_with_a_reason(run, arguments, reason):
    status, out, _ = run("doctor", "--ranks", 24, *GOOD, *arguments.split())
    assert status == 1
    (line,) = [each for each in out.splitlines() if each.startswith("refused")]
    assert reason in line


def test_a_job_is_judged_on_the_machines_that_it_is_for(run, ran):
    on_gpus = [each for each in GOOD if each not in ("--distributed-backend", "gloo")]
    out = ran("doctor", "--ranks", 24, *on_gpus)
    assert "runs       yes" in out
    assert "refused" not in out
    status, out, _ = run("doctor", "--ranks", 24, *on_gpus, "--use-sharp")
    assert status == 1
    assert "--use-sharp: each view makes its own communicators" in out


def test_a_job_that_is_told_to_train_on_cpus_is_one_over_gloo(run, refused):
    bare = [each for each in GOOD[1:] if each not in ("--distributed-backend", "gloo")]
    words = ("torchrun", "--nproc-per-node", 24, "-m", "recycle.megatron", "--on-cpu", "pretrain_gpt.py", *bare)
    report = json.loads(run("doctor", "--json", *words)[1])
    assert (report["runs"], report["untried_on_gpus"]) == (True, [])
    assert "it needs CUDA, and --on-cpu is given" in refused("doctor", *words, "--distributed-backend", "nccl")


@pytest.mark.parametrize(
    ("words", "untried"),
    [
        ((), []),
        (("--distributed-backend", "nccl"), ["NCCL between its servers"]),
        (("--transformer-impl", "transformer_engine"), ["Transformer Engine's layers"]),
        (("--use-distributed-optimizer",), ["the distributed optimizer"]),
        (("--recycle-exact",), ["stages that are stepped by recycle"]),
        (("--num-virtual-stages-per-pipeline-rank", "2"), ["virtual stages"]),
    ],
)
def test_what_no_gpu_has_run_is_said(run, words, untried):
    always = ["ranks on GPUs of their own", "tensor parallelism", "several hosts"]
    report = json.loads(run("doctor", "--json", "--ranks", 24, *GOOD, *words)[1])
    assert sorted(report["untried_on_gpus"]) == sorted(always + untried)
    text = " ".join(run("doctor", "--ranks", 24, *GOOD, *words)[1].split())
    assert "not tried on GPUs: " in text
    assert all(each in text for each in untried)
    for launcher in (("torchrun", "--nnodes", 1, "--nproc-per-node", 24), ("--ranks", 24, "--ranks-per-host", 24)):
        one_host = json.loads(run("doctor", "--json", *launcher, *GOOD)[1])
        assert "several hosts" not in one_host["untried_on_gpus"]


def job_of(pipelines, stages, micro_batches, *words):
    sizes = ("--pipeline-model-parallel-size", stages, "--global-batch-size", pipelines * micro_batches)
    return ("--ranks", pipelines * stages, "pretrain_gpt.py", "--micro-batch-size", 1, *sizes, *words)


def test_beside_re_routing_stands_what_could_be_done_instead(run):
    words = job_of(4, 4, 64, "--num-layers", 32, "--save", "x", "--save-interval", 500, *QUICKLY)
    plan = json.loads(run("doctor", "--json", *words)[1])["plan"]
    rerouted = [each["of_before"] for each in plan["failures"]]
    assert plan["without_pipeline"] == 0.75
    assert all(0.75 < each < 0.78 for each in rerouted)
    assert plan["restart"]["iterations"] == 250
    assert plan["restart"]["least"] < plan["restart"]["most"]
    assert plan["memory"] == [4, 4, 4, 4]
    out = " ".join(run("doctor", *words)[1].split())
    assert "instead its pipeline left out: 25.0%; 3 pipelines train on, with a smaller batch" in out
    assert "250 iterations in the mean made again" in out
    assert "each server is taken to hold the activations of up to 4 micro-batches" in out


def test_without_checkpoints_a_restart_makes_all_iterations_again(run):
    plan = json.loads(run("doctor", "--json", *job_of(6, 4, 8))[1])["plan"]
    assert plan["restart"]["iterations"] is None
    assert "all iterations, as there is no --save with --save-interval," in run("doctor", *job_of(6, 4, 8))[1]


def test_a_host_that_has_both_holders_of_a_shard_is_not_survived(run):
    """Servers of a stage live on without it, and none of them has that part of the optimizer's state."""
    words = ("--ranks-per-host", 4, *job_of(6, 2, 8, "--num-layers", 8, *QUICKLY))
    shards = (*words, "--use-distributed-optimizer")
    kept = (*shards, "--recycle-record", "run", "--recycle-keep-in-memory")

    def survives(*words):
        found = json.loads(run("doctor", "--json", *words)[1])
        return found["survives_host"], found["torn_stages"]

    assert survives(*words) == (True, [])
    assert survives(*shards) == (False, [0, 1])
    assert survives(*shards, MAPPED) == (True, [])
    assert survives(*kept, "copies=1") == (False, [0, 1])
    assert survives(*kept, "copies=2") == (True, [])
    out = " ".join(run("doctor", *shards)[1].split())
    text = "one has both servers that hold a shard of the optimizer's state of stage 0, 1; --use-tp-pp-dp-mapping"
    assert f"not the loss of a host: with 4 ranks on each, {text} changes that" in out


@pytest.mark.parametrize("stages", [1, 2])
def test_an_order_of_ranks_that_megatron_refuses_is_not_advised(run, stages):
    # Of a server's two ranks.
    job = job_of(8, stages, 4, "--num-layers", 8, "--context-parallel-size", 2, *QUICKLY)
    words = ("--ranks-per-host", 8, *job)
    assert MAPPED not in " ".join(run("doctor", *words)[1:])
    if stages > 1:
        _, _, err = run("doctor", *words, MAPPED)
        assert "(1) is the tensor-parallel x context-parallel size (2)" in err


HOLDERS = "both servers that hold a shard of the optimizer's state, so that its loss ends the job"


@pytest.mark.parametrize(
    ("per_host", "torn", "said"),
    [
        (4, 2, f"; each of 2 hosts has {HOLDERS}"),
        (8, 1, f"host every host has all servers of a stage, or {HOLDERS}"),
        (9, 0, "; 1 host has all servers of a stage, so that its loss ends the job"),
        (2, 0, "host 2 servers die with a host, all of one stage: "),
    ],
)
def test_a_host_whose_loss_ends_the_job_has_no_throughput(run, per_host, torn, said):
    words = ("--ranks-per-host", per_host, *job_of(6, 2, 8, "--num-layers", 8, *QUICKLY), "--use-distributed-optimizer")
    host = json.loads(run("doctor", "--json", *words)[1])["plan"]["host"]
    hosts = -(-12 // per_host)
    assert host["torn"] == torn
    assert sum(each["hosts"] for each in host["rerouted"]) + host["fatal"] + torn == hosts
    # Shard r is with pipelines r and r + 3.
    for each in host["rerouted"]:
        lost = {stage: {int(name[1]) for name in each["dead"] if name[-1] == stage} for stage in "01"}
        assert not any({shard % 6, (shard + 3) % 6} <= lost[stage] for shard in range(6) for stage in lost)
    assert said in " ".join(run("doctor", *words)[1].split())


MAPPED = "--use-tp-pp-dp-mapping"
QUICKLY = ("--recycle-budget", "50ms")


def host_of(run, ranks_per_host, *words):
    """What the doctor says of the loss of a host: to programs, and in its lines."""
    words = ("--ranks-per-host", ranks_per_host, *words, *QUICKLY)
    plan = json.loads(run("doctor", "--json", *words)[1])["plan"]
    lines = run("doctor", *words)[1].splitlines()
    (line,) = [each for each in lines if each.startswith("host  ")]
    return plan, line, "\n".join(lines)


def test_a_host_of_two_servers_costs_what_the_order_of_ranks_makes_of_it(run):
    """Two peers of a stage leave it half of its servers; two stages of a pipeline cost little more than one."""
    job = job_of(4, 4, 16, "--num-layers", 32)
    plan, line, text = host_of(run, 2, *job)
    server = min(each["of_before"] for each in plan["failures"])
    peers = plan["host"]
    assert (peers["servers"], peers["pipelines"], peers["without_pipelines"]) == ([2, 2], 2, 0.5)
    assert [(each["dead"], each["hosts"]) for each in peers["rerouted"]] == [
        ([f"W0_{stage}", f"W1_{stage}"], 2) for stage in range(4)
    ]
    assert all(each["of_before"] < 0.75 * server for each in peers["rerouted"])
    assert "2 servers die with a host, all of one stage: throughput" in line
    assert "after the loss of a host, its 2 pipelines left out: 50.0%; 2 pipelines train on" in text
    plan, line, text = host_of(run, 2, *job, MAPPED)
    stages = plan["host"]
    assert (stages["pipelines"], stages["without_pipelines"]) == (1, 0.75)
    assert [(each["dead"], each["hosts"]) for each in stages["rerouted"]] == [
        (["W0_0", "W0_1"], 4),
        (["W0_2", "W0_3"], 4),
    ]
    assert all(0.9 * server < each["of_before"] for each in stages["rerouted"])
    assert "2 servers die with a host, all of one pipeline: throughput" in line
    assert "after the loss of a host, its pipeline left out: 25.0%; 3 pipelines train on" in text


def test_what_a_host_costs_is_what_the_loss_of_its_servers_costs(run):
    words = ("--ranks-per-host", 4, "--ranks", 24, *GOOD)
    (first, _, _, last, *_) = json.loads(run("doctor", "--json", *words)[1])["plan"]["host"]["rerouted"]
    assert (first["dead"], first["hosts"]) == (["W0_0", "W1_0"], 1)
    assert (last["dead"], last["hosts"]) == (["W0_2", "W1_2"], 1)
    dead = json.loads(run("doctor", "--json", *words, "--recycle-dead", "W0_2,W1_2")[1])["plan"]
    assert last["of_before"] == pytest.approx(dead["of_before"], rel=0.05)


@pytest.mark.parametrize(
    ("ranks", "per_host", "said"),
    [
        (1, 1, "a host is one server: its loss costs what the table says"),
        (4, 4, "a host is one server: its loss costs what the table says"),
        (4, 2, "a server is on 2 hosts: its loss costs what the table says"),
        (4, 3, "1 to 2 servers die with a host, "),
        (1, 3, "every host has all servers of a stage, so that no peer can take over"),
        (1, 4, "4 servers die with a host, "),
        (1, 2, "2 servers die with a host, such as "),
    ],
)
@pytest.mark.parametrize("mapped", [False, True])
def test_every_host_is_planned_for_once_or_named(run, ranks, per_host, said, mapped):
    tensor = ("--tensor-model-parallel-size", ranks, *([MAPPED] if mapped else []))
    job = ("--ranks", 9 * ranks, *job_of(3, 3, 6)[2:], *tensor)
    plan, line, _ = host_of(run, per_host, *job)
    host, stages = plan["host"], [tuple(name[-1] for name in each["dead"]) for each in plan["host"]["rerouted"]]
    assert len(stages) == len({tuple(sorted(each)) for each in stages})
    hosts = -(-9 * ranks // per_host)
    assert host["unplanned"] == 0
    if host["servers"] == [1, 1]:
        assert (host["rerouted"], host["fatal"]) == ([], 0)
    else:
        assert sum(each["hosts"] for each in host["rerouted"]) + host["fatal"] == hosts
    if not mapped:
        assert said in line


@pytest.mark.parametrize("option", ["--pipeline-model-parallel-size", "--micro-batch-size", "--num-layers"])
def test_a_size_below_one_is_one_line(run, option):
    status, _, err = run("doctor", "--ranks", 24, *GOOD, option, 0)
    assert (status, err) == (2, f"recycle: {option} 0: give a number from 1\n")


@pytest.mark.parametrize(
    "arguments",
    ["--pipeline-model-parallel-layout Et*3|t,t|tt|tL", "--num-layers 30 --use-checkpoint-args --load checkpoints"],
)
def test_what_decides_how_layers_are_made_and_not_who_runs_them_is_no_obstacle(run, arguments):
    assert run("doctor", "--ranks", 24, *GOOD, *arguments.split())[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["pretrain_gpt.py", "--micro-batch-size", "1"], "give --ranks, or the whole torchrun command"),
        (["torchrun", "--nnodes", "1:4", "--nproc-per-node", "gpu", *GOOD], "is no number of ranks: give --ranks"),
        (["--ranks", "9", *GOOD], "9 ranks are no multiple of 8"),
        (["--ranks", "8", "pretrain_gpt.py"], "--micro-batch-size is missing"),
        (["--ranks", "32", *GOOD], "--global-batch-size 18 is no multiple of 4"),
        (["--ranks", "24", *GOOD, *GROWING, "2", "8", "9"], "a batch of 2 is no multiple of 3, the micro-batch size x"),
        (
            ["--ranks", "24", *GOOD, *GROWING, "3", "4", "9"],
            "in steps of 4, batches do not grow to --global-batch-size 18",
        ),
        (["--ranks", "24", *GOOD, "--recycle-dead", "W1-2"], "--recycle-dead: server 'W1-2'"),
        (["--ranks", "24", *GOOD, "--recycle-dead", "W3_0"], "its last server is W2_3"),
        (["--ranks", "24", *GOOD, "--recycle-budget", "soon"], "--recycle-budget: 'soon' is no duration"),
        (["--ranks", "24", *GOOD, "--yaml-cfg", "job.yaml"], "--yaml-cfg: Megatron takes all settings from that file"),
        (["--ranks", "24", *GOOD, "--use-mp-args-from-checkpoint-args"], "use --use-checkpoint-args alone"),
        (["--ranks", "24", *GOOD, "--micro-batch-size", "two"], "--micro-batch-size: invalid int value: 'two'"),
    ],
)
def test_what_cannot_be_read_is_one_line(refused, arguments, message):
    err = refused("doctor", *arguments)
    assert message in err
    assert err.count("\n") == 1


def catalogue(path, mode, form="lowered", failures=1):
    stages = tuple(Stage(2, 3, 2, 1, 0, 1, 0, 4) for _ in range(4))
    job = Job(pipelines=3, micro_batches=6, stages=stages, latency=(0, 0, 0), name="measured", time_unit="ms")
    make_catalogue(path, job, mode, failures, QUICK, form, lambda *_: None)
    return path


def test_a_catalogue_gives_its_own_figures_and_must_fit(run, ran, refused, tmp_path):
    path = catalogue(tmp_path / "plans.zip", Mode("split", "global"))
    out = ran("doctor", "--ranks", 24, *GOOD, "--recycle-catalogue", path)
    assert "ms" in out
    assert "equally long" not in out
    out = " ".join(run("doctor", "--ranks", 24, "--ranks-per-host", 4, *GOOD, "--recycle-catalogue", path)[1].split())
    assert "2 servers die with a host, such as " in out
    assert "; the catalogue has no plan for 6 hosts: make it with --failures 2" in out
    staggered = catalogue(tmp_path / "staggered.zip", Mode())
    compute = catalogue(tmp_path / "compute.zip", Mode("split", "global"), "compute")
    other_size = ("--global-batch-size", 8, "--recycle-catalogue", path)
    for ranks, words, message in (
        (16, (*GOOD, *other_size), "are for 3 pipelines x 4 stages x 6 micro-batches, and training has 2 pipelines"),
        (24, (*FUSED, "--recycle-catalogue", path), "split the backward pass, but gradient_accumulation_fusion is on"),
        (24, (*GOOD, "--recycle-catalogue", staggered), "make the catalogue with --optimizer global"),
        (24, (*GOOD, "--recycle-catalogue", compute), "make the catalogue again"),
    ):
        assert message in refused("doctor", "--ranks", ranks, *words)


def test_plans_that_a_catalogue_lacks_are_priced_as_a_run_makes_them(run, tmp_path):
    path = catalogue(tmp_path / "none.zip", Mode("split", "global"), failures=0)
    words = ("--ranks", 24, "--ranks-per-host", 4, *GOOD, "--recycle-catalogue", path, "--recycle-dead", "W0_0,W1_1")
    status, out, _ = run("doctor", "--json", *words)
    plan = json.loads(out)["plan"]
    assert (status, plan["dead"], len(plan["failures"])) == (0, ["W0_0", "W1_1"], 4)
    host = plan["host"]
    assert host["unplanned"] == sum(each["hosts"] for each in host["rerouted"]) == 6


def test_neither_torch_nor_a_solver_is_imported():
    code = (
        "import sys\n"
        "from recycle.cli import main\n"
        f"sys.argv = ['recycle', 'doctor', '--ranks', '24', *{GOOD!r}]\n"
        "try:\n    main()\n"
        "finally:\n    assert not {'torch', 'megatron', 'ortools'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_without_a_command_line_it_is_said_what_is_missing(refused):
    assert refused("doctor") == "recycle: Missing argument 'COMMAND...'. (recycle doctor --help says more)\n"

"""Roles of a translation model's encoder heads: planted ones are found, and tables of the run agree."""

from __future__ import annotations

import random
from pathlib import Path

import polars as pl
import pytest
import torch
import yaml

from mtl.analysis.probe import index_corpus, probe_heads, probe_run
from mtl.commands.main import main
from mtl.config.schema import CorpusConfig
from mtl.corpora.formats.jsonl import write_jsonl
from mtl.errors import InputError
from mtl.heads.gates import HeadGates
from mtl.models.joint import JointModel
from mtl.probes.measures import corpus as probe_corpus
from mtl.probes.statistics.head_values import heads_of_roles
from mtl.probes.tables import heads_table
from mtl.tasks.sentence import Arcs, Sentence
from mtl.tasks.task import Labels
from mtl.translation.config import Seq2SeqConfig
from mtl.translation.pieces import train_vocabulary
from mtl.translation.seq2seq import Seq2Seq, from_scratch
from mtl.translation.source_encoder import SourceEncoder
from mtl.translation.task import Translate

SIZE, LENGTH, RARE = 32, 20, "7"


def sentences(number: int = 12) -> list[Sentence]:
    """Digits, of which 7 is the rarest and stands in every sentence; each depends on the next one."""
    rng = random.Random(3)
    made = []
    for _ in range(number):
        digits = rng.choices("012", k=LENGTH - 1)
        digits.insert(rng.randrange(LENGTH), RARE)
        arcs = Arcs((*range(2, LENGTH + 1), 0), ("next",) * (LENGTH - 1) + ("root",))
        tags = tuple("RARE" if digit == RARE else "DIGIT" for digit in digits)
        made.append(Sentence(tuple(digits), tags=tags, arcs=arcs, text=" ".join(digits)))
    return made


def planted(gates: HeadGates | None = None) -> JointModel:
    """One layer of three heads: to the piece before, to the one behind, and to the rarest digit.

    Positions are read from the first 32 dimensions, in each of which one position stands out, and pieces from
    the last ones.
    """
    tokenizer = train_vocabulary(["0 1 2 7", "12 12 12"], 300, 64)
    torch.manual_seed(0)
    settings = Seq2SeqConfig("bart", 1, None, 3, 3 * SIZE, 24, 0.0, 300)
    transformer = from_scratch(settings, tokenizer, "eager").double().eval()
    encoder = transformer.model.encoder
    layer = encoder.layers[0].self_attn
    with torch.no_grad():
        encoder.embed_positions.weight.zero_()
        encoder.embed_positions.weight[2 : 2 + SIZE, :SIZE] = 100 * torch.eye(SIZE)  # BART counts from 2
        encoder.embed_tokens.weight.zero_()
        encoder.embed_tokens.weight[tokenizer(RARE)["input_ids"][0], 2 * SIZE] = 10
        for part in (layer.q_proj, layer.k_proj):
            part.weight.zero_()
            part.bias.zero_()
        for head, offset in enumerate((-1, 1)):
            rows = torch.arange(max(0, -offset), SIZE - max(0, offset))
            layer.q_proj.weight[head * SIZE + rows, rows] = 10
            layer.k_proj.weight[head * SIZE + rows, rows + offset] = 10
        layer.q_proj.bias[2 * SIZE] = 10
        layer.k_proj.weight[2 * SIZE, 2 * SIZE] = 10
    model = Seq2Seq(transformer, tokenizer)
    return JointModel(model, {"translate": Translate()}, {"translate": Labels(())}, gates).eval()


def test_planted_roles_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe_corpus, "FREQUENT", 3)
    built = planted()
    corpus = index_corpus(sentences())
    [mask] = built.scales.masks(tuple(corpus.items))
    heads = probe_heads(SourceEncoder(built.encoder), corpus, mask)
    assert set(heads["attention"]) == {"encoder"}  # also what is of no head: chance

    def value(measure: str, label: str, head: int) -> float:
        [found] = heads.filter(measure=measure, label=label, layer=0, head=head)["value"].to_list()
        return float(found)

    within = (LENGTH - 1) / LENGTH  # the first word has none before it
    assert value("positional", "-1", 0) == pytest.approx(within)
    assert value("positional", "+1", 1) == pytest.approx(within)
    assert value("positional", "+1", 0) < 0.1
    assert value("rare_words", "", 2) == 1.0
    assert value("rare_words", "", 0) < 0.2
    assert value("syntactic", "next to head", 1) == 1.0
    assert value("syntactic", "next to dependent", 0) == 1.0
    held = heads_of_roles(heads).select("measure", "label", "attention", "head").rows()
    assert held == [("positional", "+1", "encoder", 1), ("positional", "-1", "encoder", 0)]
    assert heads.filter(measure="confidence")["value"].min() > 0.5


def saved_run(folder: Path, gates: HeadGates | None = None) -> Path:
    """The planted model as a run, with a corpus of annotated sources beside it."""
    planted(gates).float().save(folder / "run" / "model")
    lines = {"de": "eins\n", "en": "1\n"}
    for name, text in lines.items():
        (folder / name).write_text(text)
    files = f"{folder / 'en'}:{folder / 'de'}"
    parallel = {"format": "parallel", **dict.fromkeys(("train", "dev", "test"), files)}
    config = {
        "tasks": ["translate"], "name": "run", "seed": 1, "seq2seq": {"architecture": "bart"},
        "corpus": {"path": None, "translate": parallel}, "encoder": {"name": "none"},
    }  # fmt: skip
    (folder / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    write_jsonl(folder / "parsed" / "test.jsonl", sentences())
    return folder / "run"


@pytest.mark.slow
def test_a_run_is_probed_under_its_mask_and_its_tables_agree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gates = HeadGates(3, 3, masks=("shared",), init_mean=4.0)
    gates.log_alpha.data[0, 0, 1] = -4.0
    gates.log_alpha.data[0, 1:] = -4.0
    run = saved_run(tmp_path, gates)
    assert main(["probe", str(run), f"--corpus={tmp_path / 'parsed'}"]) == 0
    printed = capsys.readouterr().out
    assert "not probed: heads of decoder and cross attention: words of the annotated source do not" in printed
    assert "note:" not in printed
    assert main(["importance", str(run)]) == 0
    heads, provenance = heads_table.read_heads_table(run / "heads.parquet")
    assert provenance["masks"] == "true"
    probed = heads.filter(measure="clustering", task="pos", label="DIGIT")
    places = heads.filter(measure="importance", attention="encoder").select("attention", "layer", "head")
    assert probed.select("attention", "layer", "head").equals(places)
    # A closed head writes nothing; the others do.
    assert [value > 0 for value in probed["value"]] == [True, False, True]
    assert set(heads.filter(measure="importance")["attention"]) == {"encoder", "decoder", "cross"}
    assert main(["probe", str(run), f"--corpus={tmp_path / 'parsed'}", "--masks=false"]) == 0
    heads, _ = heads_table.read_heads_table(run / "heads.parquet")
    assert heads.filter(measure="clustering", label="DIGIT")["value"].min() > 0
    assert heads.filter(measure="importance").height == 9


def test_what_is_left_out_and_what_is_read_otherwise_is_reported(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    made = sentences(3)
    spelt = Sentence(made[0].words, tags=made[0].tags)
    merged = Sentence(("1", "2"), tags=("DIGIT", "DIGIT"), text="12")
    write_jsonl(tmp_path / "mixed" / "test.jsonl", [*made, spelt, merged])
    write_jsonl(tmp_path / "mixed" / "train.jsonl", made)
    result = probe_run(str(run), CorpusConfig(str(tmp_path / "mixed")), centroids="train")
    assert "1 of 5 test sentences: a subword covers several words" in result.left_out
    [note] = result.notes
    assert note.startswith("1 of 4 test sentences have no text as it was written (key 'text')")
    assert set(result.heads.filter(measure="clustering", task="pos", label="DIGIT")["choice"]) == {"train"}


def test_a_run_that_translates_needs_annotated_sources(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    with pytest.raises(
        InputError, match="translates, and its own corpus labels no words: use --corpus=FOLDER"
    ):
        probe_run(str(run))
    assert not (run / "heads.parquet").exists()
    model = run / "model"
    corpus = CorpusConfig(str(tmp_path / "parsed"))
    result = probe_run(str(model), corpus, tmp_path)
    assert set(result.heads.drop_nulls("head")["attention"]) == {"encoder"}


@pytest.mark.slow
def test_roles_and_gradients_predict_what_ablation_costs(tmp_path: Path) -> None:
    """Probed measures are of the encoder's heads, and count for the task that those heads serve."""
    run = saved_run(tmp_path)
    probe_run(str(run), CorpusConfig(str(tmp_path / "parsed")))
    assert main(["importance", str(run)]) == 0
    assert main(["ablate", str(run)]) == 0
    out = tmp_path / "prediction.png"
    assert main(["figure", "prediction", str(run), f"--out={out}"]) == 0
    table = pl.read_parquet(out.with_suffix(".parquet"))
    heads = dict(table.select("measure", "heads").iter_rows())
    of_encoder = dict.fromkeys(("confidence", "positional", "syntactic"), 3)
    assert heads == {**dict.fromkeys(("importance", "taylor", "fisher"), 9), **of_encoder}


def test_the_encoders_of_tiny_models_are_probed_in_bfloat16(tmp_path: Path) -> None:
    run = saved_run(tmp_path)
    result = probe_run(
        str(run), CorpusConfig(str(tmp_path / "parsed")), precision="bf16-true", accelerator="cpu"
    )
    assert result.heads.filter(measure="positional")["value"].max() > 0.9

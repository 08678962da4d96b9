"""The tools around Transformers on linnet's models: Trainer, PEFT, pipelines, device maps."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments, pipeline

from linnet.data.tokenizer import build_tokenizer
from linnet.hf import LinnetForCausalLM, LinnetForMaskedLM, LinnetForSequenceClassification
from linnet.hf.tokenizer import convert_tokenizer

pytest.importorskip("accelerate", reason="the Trainer needs accelerate")
# Messages of the libraries themselves about this machine and their own future.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
TOKENIZER = build_tokenizer("bytes")


def arguments(tmp_path, **more) -> TrainingArguments:
    return TrainingArguments(
        str(tmp_path),
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=5,
        **more,
    )


def losses(trainer: Trainer) -> list[float]:
    return [record["loss"] for record in trainer.state.log_history if "loss" in record]


@pytest.mark.parametrize("checkpointing", [False, True])
def test_the_trainer_lowers_the_loss(checkpointing, tiny, tmp_path):
    model = tiny("transnormer_t2_lm", LinnetForCausalLM, dropout=0.0)
    rows = [{"input_ids": row, "labels": row} for row in (torch.arange(12) + i % 7 + 4 for i in range(32))]
    how = arguments(tmp_path, max_steps=20, gradient_accumulation_steps=2, gradient_checkpointing=checkpointing)
    trainer = Trainer(model, how, train_dataset=rows)
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0] / 3
    trainer.save_model(tmp_path / "saved")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    ids = torch.arange(5, 11)[None]
    assert again.generate(ids, max_new_tokens=3, do_sample=False)[0, 6:].tolist() == [11, 12, 13]


def test_a_classifier_learns(tiny, tmp_path):
    model = tiny("lln_diag_roberta", LinnetForSequenceClassification, dropout=0.0)
    rows = [{"input_ids": torch.randint(4, 30, (9,)) + 30 * (i % 2), "labels": i % 2} for i in range(48)]
    trainer = Trainer(model, arguments(tmp_path, max_steps=15), train_dataset=rows)
    trainer.train()
    with torch.no_grad():
        found = model(torch.stack([row["input_ids"] for row in rows])).logits.argmax(dim=1)
    assert found.tolist() == [row["labels"] for row in rows]


def test_lora_trains_only_its_own_weights_and_merges(tiny, tmp_path):
    peft = pytest.importorskip("peft", reason="needs peft")
    model = tiny("lln_diag_lm", LinnetForCausalLM, dropout=0.0)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    how = peft.LoraConfig(r=4, target_modules=["qkv", "out", "enter", "leave"], task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(model, how)
    rows = [{"input_ids": row, "labels": row} for row in (torch.arange(12) + i % 7 + 4 for i in range(32))]
    trainer = Trainer(adapted, arguments(tmp_path, max_steps=20), train_dataset=rows)
    trainer.train()
    assert losses(trainer)[-1] < losses(trainer)[0]
    ids = torch.arange(5, 11)[None]
    adapted.eval()
    text = adapted.generate(input_ids=ids, max_new_tokens=6, do_sample=False)
    logits = adapted(input_ids=ids).logits
    adapted.save_pretrained(tmp_path / "adapter")
    merged = adapted.merge_and_unload()
    assert torch.equal(text, merged.generate(ids, max_new_tokens=6, do_sample=False))
    torch.testing.assert_close(merged(ids).logits, logits, rtol=1e-4, atol=1e-4)
    assert torch.equal(merged.state_dict()["model.embedding.weight"], before["model.embedding.weight"])
    assert not torch.equal(
        merged.state_dict()["model.blocks.0.mixers.0.qkv.weight"], before["model.blocks.0.mixers.0.qkv.weight"]
    )
    base = LinnetForCausalLM(model.config)
    base.load_state_dict(before)
    again = peft.PeftModel.from_pretrained(base.eval(), tmp_path / "adapter")
    torch.testing.assert_close(again(input_ids=ids).logits, logits)


def test_the_text_generation_pipeline(tiny):
    model = tiny("transnormer_t2_lm", LinnetForCausalLM, vocab_size=TOKENIZER.vocab_size)
    tokenizer = convert_tokenizer(TOKENIZER)
    write = pipeline("text-generation", model=model, tokenizer=tokenizer, device="cpu")
    texts = ["To be, or not", "A"]
    batch = write(texts, max_new_tokens=8, do_sample=False, batch_size=2)
    for text, (found,) in zip(texts, batch, strict=True):
        alone = model.model.generate(torch.tensor([TOKENIZER.encode(text)]), 8, temperature=0)[0].tolist()
        assert found["generated_text"] == TOKENIZER.decode(alone)


def test_the_fill_mask_pipeline(tiny):
    model = tiny("lln_diag_roberta", LinnetForMaskedLM, vocab_size=TOKENIZER.vocab_size)
    fill = pipeline("fill-mask", model=model, tokenizer=convert_tokenizer(TOKENIZER), device="cpu", top_k=3)
    found = fill("to b<mask>")
    ids = torch.tensor([[*TOKENIZER.encode("to b"), TOKENIZER.mask]])
    best = model(ids).logits[0, -1].softmax(dim=-1).topk(3)
    assert [answer["token"] for answer in found] == best.indices.tolist()
    assert [answer["score"] for answer in found] == pytest.approx(best.values.tolist())


def test_the_text_classification_pipeline(tiny):
    model = tiny("lln_diag_roberta", LinnetForSequenceClassification, vocab_size=TOKENIZER.vocab_size)
    classify = pipeline("text-classification", model=model, tokenizer=convert_tokenizer(TOKENIZER), device="cpu")
    texts = ["short", "a much longer text"]
    for text, found in zip(texts, classify(texts, batch_size=2), strict=True):
        with torch.no_grad():
            p = model(torch.tensor([TOKENIZER.encode(text)])).logits.softmax(dim=-1)[0]
        assert found["label"] == f"LABEL_{int(p.argmax())}" and found["score"] == pytest.approx(float(p.max()))


def test_a_device_map_spreads_the_blocks(tiny, tmp_path):
    model, ids = tiny("lln_diag_lm", LinnetForCausalLM), torch.randint(4, 61, (1, 7))
    model.save_pretrained(tmp_path)
    spread = AutoModelForCausalLM.from_pretrained(tmp_path, device_map="auto")
    assert torch.equal(spread(ids).logits, model(ids).logits)
    # The last block lies on disk and is loaded for each call.
    parts = dict.fromkeys(("embedding", "embedding_norm", "dropout", "final_norm", "output"), "cpu")
    blocks = {
        f"blocks.{i}": "disk" if i == len(model.model.blocks) - 1 else "cpu" for i in range(len(model.model.blocks))
    }
    where = {f"model.{name}": device for name, device in (parts | blocks).items()}
    spread = AutoModelForCausalLM.from_pretrained(tmp_path, device_map=where, offload_folder=tmp_path / "offload")
    assert torch.equal(spread(ids).logits, model(ids).logits)


TASK = """
task: which_word
dataset_path: json
dataset_kwargs: {data_files: {test: questions.jsonl}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{question}}"
doc_to_choice: "{{choices}}"
doc_to_target: answer
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
"""


@pytest.mark.slow
def test_the_evaluation_harness_scores_a_local_task(tiny, tmp_path, monkeypatch):
    lm_eval = pytest.importorskip("lm_eval", reason="needs lm-eval")
    from lm_eval.tasks import TaskManager

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    questions = [
        {"question": "for i in", "choices": ["range(3)", "))))"], "answer": 0},
        {"question": "a longer one: import", "choices": ["os", "torch", "%"], "answer": 1},
    ]
    (tmp_path / "questions.jsonl").write_text("".join(json.dumps(question) + "\n" for question in questions))
    (tmp_path / "which_word.yaml").write_text(TASK)
    model = tiny("transnormer_t2_lm", LinnetForCausalLM, vocab_size=TOKENIZER.vocab_size)
    model.save_pretrained(tmp_path / "model")
    convert_tokenizer(TOKENIZER).save_pretrained(tmp_path / "model")
    tasks = TaskManager(include_path=str(tmp_path), include_defaults=False)
    where = {"pretrained": str(tmp_path / "model"), "dtype": "float32"}
    how = {"device": "cpu", "batch_size": 2, "bootstrap_iters": 0, "task_manager": tasks}
    found = lm_eval.simple_evaluate(model="hf", model_args=where, tasks=["which_word"], **how)
    right = 0
    for sample in found["samples"]["which_word"]:
        question = sample["doc"]
        scores = []
        for choice in question["choices"]:
            before, ids = (
                TOKENIZER.encode(text) for text in (question["question"], f"{question['question']} {choice}")
            )
            with torch.no_grad():
                p = model(torch.tensor([ids])).logits.log_softmax(dim=-1)[0]
            scores.append(float(sum(p[i - 1, ids[i]] for i in range(len(before), len(ids)))))
        assert [score for score, _ in sample["filtered_resps"]] == pytest.approx(scores, abs=1e-3)
        right += max(range(len(scores)), key=scores.__getitem__) == question["answer"]
    assert found["results"]["which_word"]["acc,none"] == right / len(questions)

"""Bags of words: they learn what words tell, and nothing that their order tells."""

import numpy as np
import pytest

from linnet.data.labeled_texts import LabeledTexts
from linnet.studies.glue_words import PENALTY, glue_words_answers

RNG = np.random.default_rng(0)
FILLER = [" ".join(RNG.choice(list("abcdefgh"), 6)) for _ in range(60)]


def labeled(first, labels, second=None):
    return LabeledTexts(list(first), second, np.asarray(labels, np.float64), [""] * len(labels))


def test_a_word_decides_a_class():
    labels = [i % 3 for i in range(60)]
    texts = labeled(
        [f"{text} {('good', 'bad', 'so')[label]}" for text, label in zip(FILLER, labels, strict=True)], labels
    )
    answers, features = glue_words_answers(texts, texts, 3)
    assert answers.tolist() == labels
    assert features == 8 + 3


def test_a_pair_tells_its_halves_apart():
    labels = [i % 2 for i in range(60)]
    first = [f"{text} {'x' if label else 'y'}" for text, label in zip(FILLER, labels, strict=True)]
    second = [f"{text} {'y' if label else 'x'}" for text, label in zip(FILLER, labels, strict=True)]
    texts = labeled(first, labels, second)
    assert glue_words_answers(texts, texts, 2)[0].tolist() == labels


def test_order_is_invisible():
    texts = labeled(["cat bites dog", "dog bites cat"] * 20, [0, 1] * 20)
    answers, _ = glue_words_answers(texts, texts, 2)
    assert len(set(answers.tolist())) == 1


def test_answers_equal_those_of_scikit_learn():
    linear = pytest.importorskip("sklearn.linear_model")
    labels = [int(text.count("a") + text.count("b") > 1) for text in FILLER]
    words = sorted(set("".join(FILLER).replace(" ", "")))
    X = np.array([[word in text.split() for word in words] for text in FILLER], float)
    peer = linear.LogisticRegression(C=1 / PENALTY * 2, max_iter=2000, tol=1e-10).fit(
        X, labels
    )  # two columns of weights
    texts = labeled(FILLER, labels)
    assert glue_words_answers(texts, texts, 2)[0].tolist() == peer.predict(X).tolist()


def test_scores_are_fitted_by_least_squares():
    values = [2.0 * ("a" in text) - 1.0 * ("b" in text) for text in FILLER]
    texts = labeled(FILLER, values)
    answers, _ = glue_words_answers(texts, texts, 0)
    assert np.corrcoef(answers, values)[0, 1] > 0.99

# SPDX-License-Identifier: Apache-2.0
"""The tokenizer gives the ids and the text that the `tokenizers` package gives.

Method: a corpus of 10,000 lines, made from a fixed seed, goes through berth-tokenize and through
`tokenizers`, with SmolLM2's tokenizer and with tokenizers trained here whose pre-tokenizers are
those of Llama 3 and Qwen2, and with small ones that use each supported component. The first lines
that differ are shown.
"""

import json
import os
import pathlib
import random
import subprocess

import pytest
from tokenizers import (AddedToken, Regex, Tokenizer, decoders, models, normalizers,
                        pre_tokenizers, processors, trainers)

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOL = pathlib.Path(os.environ.get("BERTH_BIN_DIR", ROOT / "build/release/bin")) / "berth-tokenize"
SMOLLM2 = pathlib.Path(os.environ.get("BERTH_MODEL_DIR", ROOT / "build/models/smollm2"))
LINES = 10_000

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
         r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, doesn't it?", "I'LL say WE'VE won; they'd agree.",
    "Größe, Übermut, Straße – naïve café, Ångström.", "Быстрая коричневая лиса прыгает.",
    "速い茶色の狐は怠け者の犬を飛び越えます。カタカナとひらがな", "敏捷的棕色狐狸跳过了懒狗，共１２３次。",
    "빠른 갈색 여우가 게으른 개를 뛰어넘습니다", "الثعلب البني السريع يقفز فوق الكلب ١٢٣",
    "तेज़ भूरी लोमड़ी आलसी कुत्ते के ऊपर कूदती है १२३", "สุนัขจิ้งจอกสีน้ำตาลกระโดด", "ভালো আছি", "தமிழ் மொழி",
    "השועל החום המהיר", "Η γρήγορη αλεπού ΤΗΣ ΟΔΟΣ", "İstanbul ılık ŞİŞLİ", "Việt Nam tiếng Việt",
    "def f(x):\n\treturn x ** 2  # squared\n", "for (int i = 0; i < n; ++i) { a[i] += b[i]; }",
    "SELECT * FROM t WHERE a >= 10.5e-3 AND b != 'x''y';", "<div class=\"a b\">&nbsp;</div>",
    "https://example.org/a?b=c&d=%20e#f", "{\"key\": [1, 2.0, -3e5, null]}", "\\frac{a}{b} \\sum_{i=0}^n",
]
EMOJI = ["😀", "👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇩🇪🇫🇷", "❤️", "1️⃣", "🧑🏿‍🚀", "☺", "🫠"]
COMBINING = ["e\u0301", "a\u0308\u0323", "o\u0302\u0301", "\u1100\u1161\u11a8", "\u0928\u093c", "Z\u0351\u036b\u0343",
             "\u212b", "\ufb01", "\u2126", "ẛ\u0323", "\u0344", "\u0958", "①½Ⅷ²"]
SPACES = [" ", "  ", "   ", "\t", "\n", "\r\n", "\n\n", " \n ", "\u00a0", "\u3000", "\u2003", "\u2028", "\u0085",
          "\u180e", "\u200b", "\u200d", "\u000b", "\u000c", "\u001f", "        "]
CONTROL = ["\x00", "\x01", "\x1b[31m", "\x7f", "\ufeff", "\u202e", "\ufffd", "\uffff", "\U0010ffff", "\ue000"]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80",
          b"\x80\x80", b"\xe0\x80\x80", b"\xf0\x9f\x98\xe2\x82\xac", b"\xfe\xfe\xff"]
DIGITS = ["0", "42", "1234567890", "3.14159", "1,000,000", "٣٤", "१२", "Ⅻ", "½", "２０２６", "10^9", "0x1F"]


def number(rng):
    return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 12)))


def any_character(rng):
    blocks = [(0x20, 0x7e), (0xa0, 0x24f), (0x370, 0x3ff), (0x400, 0x4ff), (0x5d0, 0x5ea), (0x620, 0x64a),
              (0x905, 0x939), (0xe01, 0xe30), (0x1e00, 0x1eff), (0x2000, 0x206f), (0x2190, 0x22ff),
              (0x3041, 0x30ff), (0x4e00, 0x9fa5), (0xac00, 0xd7a3), (0x1f300, 0x1f5ff), (0x1d400, 0x1d4ff)]
    low, high = rng.choice(blocks)
    return chr(rng.randint(low, high))


def words_of(rng):
    return " ".join(rng.choice(SENTENCES).split(" ")[: rng.randint(1, 9)])


def piece(rng):
    kind = rng.random()
    if kind < 0.40:
        return words_of(rng)
    if kind < 0.50:
        return rng.choice(SPACES)
    if kind < 0.58:
        return rng.choice(EMOJI)
    if kind < 0.66:
        return rng.choice(COMBINING)
    if kind < 0.74:
        return rng.choice(DIGITS) if rng.random() < 0.5 else number(rng)
    if kind < 0.80:
        return rng.choice(CONTROL)
    if kind < 0.85:
        return rng.choice(SPECIAL) if rng.random() < 0.8 else rng.choice(SPECIAL)[:-1]
    return "".join(any_character(rng) for _ in range(rng.randint(1, 8)))


def make_corpus():
    """(line for the tool, the text it stands for): every tenth as raw bytes that are broken UTF-8."""
    rng = random.Random(20240611)
    lines = [("", ""), (" ", " "), ("\n", "\n"), ("a" * 5000, "a" * 5000), (" " * 3000, " " * 3000),
             ("ab" * 3000 + "\n" * 500, "ab" * 3000 + "\n" * 500)]
    while len(lines) < LINES:
        joint = rng.choice(["", " "])
        text = joint.join(piece(rng) for _ in range(rng.randint(1, 8)))
        if len(lines) % 10 == 0:
            raw = rng.choice(BROKEN) + text.encode() + rng.choice(BROKEN) + words_of(rng).encode()
            raw = raw[: rng.randint(len(raw) // 2, len(raw))] if rng.random() < 0.5 else raw
            lines.append(({"hex": raw.hex()}, raw.decode("utf-8", errors="replace")))
        else:
            lines.append((text, text))
    return lines


@pytest.fixture(scope="module")
def corpus():
    return make_corpus()


def run_tool(path, lines):
    given = "".join(json.dumps(line) + "\n" for line in lines)
    done = subprocess.run([TOOL, path], input=given.encode(), capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return [json.loads(line) for line in done.stdout.decode().split("\n") if line]


def compare(tokenizer, path, lines, texts=True):
    """texts=False: ids alone. The package decodes an added token to its normalised text, which is not
    what the token was; that is left out of the comparison."""
    answers = run_tool(path, [line for line, _ in lines])
    assert len(answers) == len(lines)
    differing = []
    for (_, text), answer in zip(lines, answers):
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        special = tokenizer.encode(text, add_special_tokens=True).ids
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        expected = {"ids": ids, "special": special, "text": decoded, "streamed": decoded,
                    "plain": tokenizer.decode(special, skip_special_tokens=True)}
        if not texts:
            answer, expected = ({key: each[key] for key in ("ids", "special")} for each in (answer, expected))
        if answer != expected:
            differing.append((text, expected, answer))
    shown = "\n".join(f"text {t!r}\n  expected {e}\n  found    {a}" for t, e, a in differing[:3])
    assert not differing, f"{len(differing)} of {len(lines)} lines differ:\n{shown}"


def train(tokenizer, special=()):
    trainer = trainers.BpeTrainer(vocab_size=2500, special_tokens=list(special), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    rng = random.Random(7)
    tokenizer.train_from_iterator([words_of(rng) for _ in range(4000)], trainer)
    return tokenizer


def byte_level_tokenizer(pre_tokenizer, normalizer=None, special=SPECIAL, ignore_merges=False):
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    return train(tokenizer, special)


def split_then_bytes(pattern, behavior="isolated", invert=False):
    return pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def check(tokenizer, tmp_path, lines):
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    compare(Tokenizer.from_file(str(path)), path, lines)


def test_smollm2_equals_the_tokenizers_package(corpus):
    path = SMOLLM2 / "tokenizer.json"
    if not path.exists():
        pytest.skip(f"{path} is not there: configs/make_model.py makes it")
    compare(Tokenizer.from_file(str(path)), path, corpus)


def test_llama3_shape_equals_the_tokenizers_package(corpus, tmp_path):
    tokenizer = byte_level_tokenizer(split_then_bytes(LLAMA3), ignore_merges=True)
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|endoftext|> $A", pair="<|endoftext|> $A $B:1",
                                      special_tokens=[("<|endoftext|>", tokenizer.token_to_id("<|endoftext|>"))])])
    check(tokenizer, tmp_path, corpus)


def test_qwen2_shape_equals_the_tokenizers_package(corpus, tmp_path):
    check(byte_level_tokenizer(split_then_bytes(QWEN2), normalizers.NFC()), tmp_path, corpus)


def test_merges_as_strings_equal_merges_as_pairs(corpus, tmp_path):
    tokenizer = byte_level_tokenizer(split_then_bytes(LLAMA3))
    saved = json.loads(tokenizer.to_str())
    saved["model"]["merges"] = [" ".join(merge) for merge in saved["model"]["merges"]]
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(saved))
    compare(tokenizer, path, corpus[:1000])


@pytest.mark.parametrize("normalizer", [
    normalizers.NFD(), normalizers.NFKC(), normalizers.NFKD(), normalizers.Lowercase(),
    normalizers.Replace("a", "bb"), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Prepend("x"),
    normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Replace(" ", "_")]),
], ids=["NFD", "NFKC", "NFKD", "Lowercase", "ReplaceString", "ReplaceRegex", "Prepend", "Sequence"])
def test_each_normalizer_equals_the_tokenizers_package(corpus, tmp_path, normalizer):
    check(byte_level_tokenizer(split_then_bytes(QWEN2), normalizer), tmp_path, corpus[:2500])


@pytest.mark.parametrize("behavior", ["isolated", "removed", "merged_with_previous", "merged_with_next",
                                      "contiguous"])
@pytest.mark.parametrize("invert", [False, True])
def test_each_split_behavior_equals_the_tokenizers_package(corpus, tmp_path, behavior, invert):
    check(byte_level_tokenizer(split_then_bytes(r"\s|\p{N}", behavior, invert)), tmp_path, corpus[:1500])


@pytest.mark.parametrize("pre_tokenizer", [
    pre_tokenizers.ByteLevel(add_prefix_space=True), pre_tokenizers.ByteLevel(add_prefix_space=False),
    pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.ByteLevel()]),
    pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                             pre_tokenizers.ByteLevel(add_prefix_space=False)]),
    pre_tokenizers.Sequence([pre_tokenizers.Split(".", behavior="isolated"),
                             pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
    split_then_bytes(r"[^\r\n\p{L}\p{N}]?+\p{L}++|[一-龥぀-ゟ゠-ヿ]+|[!-/:-~！-／：-～]+|\s*[\r\n]|\s+$"),
], ids=["ByteLevelPrefix", "ByteLevel", "Digits", "IndividualDigits", "SplitString", "Possessive"])
def test_each_pre_tokenizer_equals_the_tokenizers_package(corpus, tmp_path, pre_tokenizer):
    check(byte_level_tokenizer(pre_tokenizer), tmp_path, corpus[:2500])


@pytest.mark.parametrize("normalizer", [None, normalizers.Lowercase()], ids=["plain", "lowercase"])
def test_added_tokens_equal_the_tokenizers_package(corpus, tmp_path, normalizer):
    tokenizer = byte_level_tokenizer(split_then_bytes(QWEN2), normalizer)
    tokenizer.add_tokens([
        AddedToken("quick brown", normalized=True), AddedToken("Fox", single_word=True, normalized=False),
        AddedToken("the", single_word=True, normalized=True), AddedToken("狐", lstrip=True, rstrip=True),
        AddedToken("  ", normalized=False), AddedToken("DOG", normalized=True, rstrip=True)])
    tokenizer.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<|im|>", rstrip=True),
                                  AddedToken("<|im_start|>x", normalized=False)])
    rng = random.Random(3)
    extra = ["<mask>", " <mask> ", "<|im|>  a", "<|im_start|>x", "a Fox b", "aFox", "Fox", "the", "The THE",
             "other the", " 狐 ", "DOG  x", "   ", "quick brown", "<mask><mask>", "é<|im|>\n<mask>"]
    lines = []
    for _, text in corpus[6:2000]:
        cut = rng.randint(0, len(text))
        line = text[:cut] + rng.choice(extra) + rng.choice(["", " "]) + text[cut:]
        lines.append((line, line))
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    compare(Tokenizer.from_file(str(path)), path, lines, texts=normalizer is None)


def edited(change):
    saved = json.loads(byte_level_tokenizer(split_then_bytes(LLAMA3)).to_str())
    change(saved)
    return saved


@pytest.mark.parametrize("change, named", [
    (lambda s: s.update(normalizer={"type": "BertNormalizer"}), "BertNormalizer"),
    (lambda s: s.update(pre_tokenizer={"type": "Metaspace"}), "Metaspace"),
    (lambda s: s.update(pre_tokenizer=None), "byte-level"),
    (lambda s: s.update(post_processor={"type": "BertProcessing"}), "BertProcessing"),
    (lambda s: s.update(decoder={"type": "WordPiece"}), "WordPiece"),
    (lambda s: s["model"].update(type="Unigram"), "Unigram"),
    (lambda s: s["model"].update(byte_fallback=True), "byte_fallback"),
    (lambda s: s["model"].update(dropout=0.1), "dropout"),
    (lambda s: s["model"]["merges"].append(["qqqq", "zzzz"]), "qqqq"),
    (lambda s: s["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": "[a&&b]"}), "intersection"),
    (lambda s: s["pre_tokenizer"]["pretokenizers"][0].update(behavior="Sideways"), "Sideways"),
], ids=["normalizer", "pre_tokenizer", "none", "post_processor", "decoder", "model", "byte_fallback",
        "dropout", "merge", "pattern", "behavior"])
def test_an_unknown_component_is_refused_by_name(tmp_path, change, named):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(edited(change)))
    done = subprocess.run([TOOL, path], input=b"", capture_output=True, timeout=60)
    assert done.returncode == 1
    assert named in done.stderr.decode()


def test_a_very_long_word_is_not_quadratic(tmp_path):
    tokenizer = byte_level_tokenizer(split_then_bytes(LLAMA3))
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    text = "lazydog" * 150_000
    answer, = run_tool(path, [text])  # quadratic would take an hour; the tool has five minutes
    assert answer["text"] == text

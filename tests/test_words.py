"""Words that are not used in texts, because a stranger would have to guess what they mean.

`docs/glossary.md` has the words that are. A text that has to quote one of these, such as a reply
of another program, is listed in QUOTED.
"""

import io
import re
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
OTHER_TEXTS = sorted(
    path
    for pattern in ("src/**/*.html", "src/**/*.sql", "examples/**/*", "packaging/*", "Makefile")
    for path in ROOT.glob(pattern)
    if path.is_file() and path.suffix not in {".pyc", ".db"}
)
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])

# The expression, and what to write instead.
BANNED = {
    r"told|tells|telling": "reported, shown, logged, returns",
    r"whoever|whomever": "the caller, the operator, the node that",
    r"somebody|nobody|anybody": "the user, no node, any caller",
    r"goes on|go on|going on": "continues, is detached",
    r"put to rest|let go on|takes? away|taken away|took away": "pause, resume, delete",
    r"set forth|set back|sets? it back": "moved forward, moved backward",
    r"comes? in over|who may come in|is let in|lets? in": "authentication, access",
    r"(?<!there )(is|are|was|were) no (?!longer|more|later|earlier|less|fewer|such|older|newer)\w+": "is not a",
    r"asked to end|is to end": "cancellation requested",
    r"what (came|comes|became|becomes) of": "the outcome",
    r"hears? of|heard of": "is notified of, receives",
    r"how-manyeth": "the sequence number",
    r"whose is what": "owner",
}
QUOTED = {
    "src/onbeat/core/explain/attempts.py": {"asked to end"},  # in rows of earlier versions
    "src/onbeat/systems/sessions/status.py": {"told"},  # the key of a stored document
    "docs/reference/rest.md": {"nobody"},  # the name of a schedule that does not exist
}


def texts_of(path):
    """Yield the line, and the text, of each comment and string; of other files of each line."""
    if path.suffix != ".py":
        yield from enumerate(path.read_text().splitlines(), 1)
        return
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.type in {tokenize.COMMENT, tokenize.STRING}:
            yield from enumerate(token.string.splitlines(), token.start[0])


def found_in(path):
    for number, text in texts_of(path):
        for banned, instead in BANNED.items():
            for match in re.finditer(rf"\b(?:{banned})\b", text, re.IGNORECASE):
                if match[0].lower() not in QUOTED.get(path.relative_to(ROOT).as_posix(), set()):
                    yield f"{path.relative_to(ROOT)}:{number}: {match[0]!r} (write: {instead})"


@pytest.mark.parametrize(
    "path", SOURCES + OTHER_TEXTS + PAGES, ids=lambda p: str(p.relative_to(ROOT))
)
def test_texts_use_plain_words(path):
    assert list(found_in(path)) == []


def test_a_banned_word_is_found(tmp_path):
    path = ROOT / "tests" / "test_words.py"
    assert any("'told'" in each for each in found_in(path))

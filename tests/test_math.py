"""docs/math.md and the code name the same equations in the same places."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROWS = re.findall(r"^\| (M\d+) \| .* \| (\S+) \| (\w+) \|$", (ROOT / "docs/math.md").read_text(), flags=re.MULTILINE)


def tags(text: str) -> set[str]:
    return set(re.findall(r"\bM\d+\b", text))


def test_every_row_leads_to_its_function_and_tag() -> None:
    numbers = [int(tag.removeprefix("M")) for tag, _, _ in ROWS]
    assert numbers == sorted(set(numbers))
    for tag, file, function in ROWS:
        text = (ROOT / file).read_text()
        defined = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
        nodes = [node for node in defined if node.name == function]
        assert nodes, f"{tag}: {file} has no function {function}"
        bodies = ["\n".join(text.splitlines()[node.lineno - 1 : node.end_lineno]) for node in nodes]
        assert any(tag in tags(body) for body in bodies), f"{tag} is not in {function}"


def test_every_tag_in_the_code_is_explained() -> None:
    known = {tag for tag, _, _ in ROWS}
    for path in sorted((ROOT / "linnet").rglob("*.py")):
        comments = "\n".join(re.findall(r"#.*|\"\"\".*?\"\"\"", path.read_text(), flags=re.DOTALL))
        assert tags(comments) <= known, path

"""The architecture: import arrows, forbidden imports, the public API, the wheel, and the place of tests."""

import ast
import importlib
import inspect
import re
import resource
import subprocess
import sys
import tomllib
import zipfile
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import linnet

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "linnet"
FILES = sorted(PACKAGE.rglob("*.py"))
TREES = {path: ast.parse(path.read_text(), str(path)) for path in FILES}

BASE = {"errors", "plugins", "registry", "config", "screen", "storage"}
MODELS = BASE | {"ops", "attention", "models"}
# Which parts of linnet a part may import besides itself: the arrows of docs/design.md.
ARROWS = {
    **dict.fromkeys(BASE, BASE),
    "figures": BASE,
    "ops": BASE,
    "attention": BASE | {"ops"},
    "models": BASE | {"ops", "attention", "data"},
    "data": BASE,
    "tasks": MODELS | {"data"},
    "instruments": MODELS | {"figures"},
    "distributed": MODELS,
    "testing": MODELS | {"figures"},
    "bench": MODELS | {"testing", "figures", "distributed", "hf"},
    "train": MODELS | {"data", "tasks", "instruments", "distributed"},
    "report": MODELS | {"data", "instruments", "figures", "bench"},
    "studies": MODELS | {"data", "tasks", "instruments", "figures", "train", "report", "bench", "hf"},
    "hf": MODELS | {"data", "instruments", "figures"},
    "__main__": {"cli"},
}
ARROWS["cli"] = {*ARROWS, "linnet"}
LIGHT = {"ops", "attention", "models"}  # these need torch and pydantic only
UNSAFE = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "joblib", "shelve"}
NETWORK = {"requests", "httpx", "ftplib", "http.client", "urllib.request"}
ENVIRONMENT = {"LINNET_DATA", "LINNET_BACKEND", "XDG_CACHE_HOME"}
TORCHRUN = {  # what torchrun tells its processes, read in one place
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
}
PROGRAM = [sys.executable, "-c"]
PROVE = "prove"  # `make prove`, which tries promises about all of linnet: in no room, and not in the wheel
# Test files that cover more than one file of their folder. All others are named after the file that they test.
CROSS_CUTTING = (
    "test_architecture.py",  # the whole package
    "test_documents.py",  # the documents
    "test_examples.py",  # the scripts in examples/
    "test_install.py",  # wheel, sdist and git repository, installed in an environment without the checkout
    "test_math.py",  # docs/math.md against the code
    "attention/test_contract.py",  # every registered mechanism against the contract
    "attention/test_fidelity.py",  # mechanisms against other code with the same parameters
    "attention/test_edges.py",  # edge cases of several mechanisms
    "attention/test_memory.py",  # peak memory of every mechanism that claims less than quadratic
    "attention/test_options.py",  # options of norm, diag, softmax and of the projections around them
    "attention/test_torch_layers.py",  # torch's transformer layers with linnet's attention inside
    "attention/test_step.py",  # the one-kernel decoding step of every mechanism that has one
    "distributed/test_bad_input.py",  # ranks that cannot meet or do not fit
    "distributed/test_failures.py",  # a failure on one rank of a real launch
    "distributed/test_machines.py",  # several agents of torchrun
    "data/images/test_readers.py",  # every layout of images
    "data/lra/test_readers.py",  # the public layouts of Text and Image, which share their archives
    "ops/cpu/test_features.py",  # features and SRMS inside the kernels: linear, norm and rotate together
    "ops/cpu/test_saved.py",  # every kernel whose saved tensors were changed before the backward pass
    "hf/test_ecosystem.py",  # Trainer, PEFT, pipelines and device maps on every class
    "hf/test_generate.py",  # generation: the model and its cache together
    "instruments/test_weights.py",  # all instruments on weights whose numbers are known
    "report/test_browser.py",  # the page and its script in a real browser
    "studies/test_contract.py",  # what every study promises
    "studies/test_kept.py",  # the committed runs of the paper's own length
    "train/test_recipes.py",  # every recipe builds
    "storage/test_kills.py",  # checkpoints and run folders under kill -9
    "train/test_tampering.py",  # run folders that somebody else has touched, through every command that reads them
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in FILES}


def part_of(module: str) -> str:
    """`linnet.ops.linear` -> `ops`; the package's own `__init__` -> `linnet`."""
    return [*module.split("."), "linnet"][1]


def imports(path: Path, tree: ast.AST | None = None) -> set[str]:
    """Every module that a file imports, at its top or inside a function."""
    found = set()
    for node in ast.walk(tree or TREES[path]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:  # relative: climb from the file's own package
                package = module_name(path).split(".")[: None if path.name == "__init__.py" else -1]
                base = package[: len(package) - node.level + 1]
                module = ".".join([*base, module] if module else base)
            members = {f"{module}.{alias.name}" for alias in node.names if alias.name != "__version__"}
            found |= {member if member in MODULES else module for member in members}
    return found


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def each_file(files=FILES):
    return pytest.mark.parametrize("path", files, ids=name)


@each_file([path for path in FILES if path != PACKAGE / "__init__.py"])
def test_arrows_point_one_way(path):
    part = part_of(module_name(path))
    assert part in ARROWS, f"{part} has no place among the arrows of {__name__}"
    ours = {part_of(module) for module in imports(path) if module.split(".")[0] == "linnet"}
    assert ours <= ARROWS[part] | {part}, f"{name(path)} imports {sorted(ours - ARROWS[part] - {part})}"


def test_the_page_about_the_design_draws_this_tree_and_these_arrows():
    page = (ROOT / "docs/design.md").read_text()
    _, tree, _, chain, _, rows = page.split("## One batch")[0].split("```")[:6]
    files, *folders = tree.strip().splitlines()[1:]
    drawn = {*re.findall(r"\w+\.py", files), *(line.split()[0] for line in folders)}
    places = [path for path in PACKAGE.iterdir() if not path.name.startswith("_") and path.name != "py.typed"]
    assert drawn == {f"{path.name}/" if path.is_dir() else path.name for path in places}
    assert set(re.findall(r"\w+", chain.split("←")[0])) == BASE
    groups, found = {"base": BASE, "the model stack": MODELS, "everything": ARROWS["cli"]}, set()
    for row in rows.strip().splitlines():
        parts, allowed = re.split(r"\s{2,}(?:may import\s+)?", re.sub(r" \(.*?\)", "", row))
        arrows = set().union(*(groups.get(part, {part}) for part in allowed.split(", ")))
        for part in set().union(*(groups.get(part, {part}) for part in parts.split(", "))):
            assert arrows | {part} == ARROWS[part] | {part}, f"docs/design.md about {part}"
            found.add(part)
    assert found == ARROWS.keys() - {"__main__"}


def test_no_two_modules_import_each_other():
    def at_import(path: Path) -> set[str]:
        functions = (ast.FunctionDef, ast.AsyncFunctionDef)
        top = [node for node in TREES[path].body if not isinstance(node, functions)]
        return imports(path, ast.Module(top, [])) & set(MODULES) - {module_name(path)}

    TopologicalSorter({module: at_import(path) for module, path in MODULES.items()}).prepare()


def test_the_core_and_the_model_are_whole_classes():
    """What they need from other files is called, not inherited: inheritance is for several of a kind."""
    torch = importlib.import_module("torch")
    from linnet.attention.base import Core
    from linnet.models.backbone import Model

    assert Core.__bases__ == Model.__bases__ == (torch.nn.Module,)


@each_file()
def test_third_party_imports(path):
    part = part_of(module_name(path))
    foreign = {module.split(".")[0] for module in imports(path)} - {"linnet"} - sys.stdlib_module_names
    if part in LIGHT:
        assert foreign <= {"torch", "pydantic"} | ({"triton"} if path.parent == PACKAGE / "ops" / "triton" else set())
    assert part == "hf" or not {"transformers", "peft", "accelerate"} & foreign


@each_file()
def test_nothing_is_unpickled_evaluated_or_fetched(path):
    found = imports(path)
    assert not {module.split(".")[0] for module in found} & UNSAFE
    assert not found & NETWORK
    for call in (node for node in ast.walk(TREES[path]) if isinstance(node, ast.Call)):
        assert not (isinstance(call.func, ast.Name) and call.func.id in {"eval", "exec", "__import__"})
        unsafe = {"torch.load", "socket.socket", "socket.create_connection"}
        if name(path) == "linnet/distributed/ranks.py":  # asks whether the store that torchrun names can be reached
            unsafe -= {"socket.create_connection"}
        assert ast.unparse(call.func) not in unsafe
        pickles = [word.value for word in call.keywords if word.arg == "allow_pickle"]
        assert all(isinstance(value, ast.Constant) and value.value is False for value in pickles)


@each_file()
def test_an_assertion_only_tells_the_type_checker_what_holds(path):
    """`python -O` removes assertions, so none may check input: each says that a value is not None, or of a type."""
    for found in (node for node in ast.walk(TREES[path]) if isinstance(node, ast.Assert)):
        for part in found.test.values if isinstance(found.test, ast.BoolOp) else [found.test]:
            told = ast.unparse(part)
            assert told.endswith(" is not None") or told.startswith("isinstance("), f"line {found.lineno}: {told}"


@each_file()
def test_no_other_environment_variable(path):
    for node in ast.walk(TREES[path]):
        source = ast.unparse(node) if isinstance(node, ast.Call | ast.Subscript) else ""
        if source.startswith(("os.environ[", "os.environ.get(", "os.getenv(")):
            key = node.slice if isinstance(node, ast.Subscript) else node.args[0]
            assert isinstance(key, ast.Constant), f"{name(path)}: {source}"
            allowed = ENVIRONMENT | (TORCHRUN if name(path) == "linnet/distributed/ranks.py" else set())
            assert key.value in allowed, f"{name(path)}: {source}"


@each_file()
def test_a_file_says_what_it_is(path):
    assert ast.get_docstring(TREES[path]), f"{name(path)} has no docstring"
    assert path.stem not in {"utils", "util", "helpers", "common", "misc"}
    if part_of(module_name(path)) == "attention":
        assert len(path.read_text().splitlines()) <= 300, f"{name(path)}: a mechanism fits in 300 lines"


def test_test_files_mirror_the_package():
    """`tests/<room>/test_x.py` tests `linnet/<room>/x.py`, or the folder `linnet/<room>/x`."""
    tests = ROOT / "tests"
    assert all((tests / file).is_file() for file in CROSS_CUTTING)
    for path in sorted(tests.rglob("*.py")):
        place = path.relative_to(tests)
        if place.parts[0] == PROVE:
            continue
        assert (PACKAGE / place.parent).is_dir(), f"tests/{place.parent} is not a folder of linnet"
        if not path.name.startswith("test_") or place.as_posix() in CROSS_CUTTING:
            continue
        tested = PACKAGE / place.parent / path.stem.removeprefix("test_")
        assert tested.is_dir() or tested.with_suffix(".py").is_file(), f"tests/{place}: what does it test?"


@pytest.mark.parametrize("program", ["import linnet", "from linnet.cli.app import run_app; run_app(['--help'])"])
def test_start_is_fast_and_without_torch(program):
    checked = f"{program}\nimport sys\nsys.exit('torch' in sys.modules)"
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*PROGRAM, checked], check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        seconds.append(
            after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        )  # other programs do not count
    assert min(seconds) < 0.5


# The frozen contract: parameters by name and default; options of a mechanism may follow.
SIGNATURES = {
    "linnet.list_attention": "",
    "linnet.list_models": "",
    "linnet.describe_attention": "name",
    "linnet.create_mixer": "name, width, heads, causal",
    "linnet.create_attention": "name, heads, head_dim, causal",
    "linnet.create_model": "name",
    "linnet.load_model": "path",
    "linnet.ops.linear_attention": "phi_q, phi_k, v, causal=True, normalize=False, key_mask=None, "
    "segments=None, log_decay=None, state=None, return_state=False, backend=None",
    "linnet.ops.exp_attention": "log_q, log_k, v, causal=True, key_mask=None, segments=None, state=None, "
    "return_state=False, backend=None",
    "linnet.ops.block_attention": "q, k, v, block=64, kind='softmax', causal=True, key_mask=None, "
    "segments=None, scale=None, backend=None",
}


def signature(dotted: str) -> inspect.Signature:
    module, attribute = dotted.rsplit(".", 1)
    return inspect.signature(getattr(importlib.import_module(module), attribute))


@pytest.mark.parametrize("dotted", SIGNATURES)
def test_public_functions_keep_their_parameters(dotted):
    required = inspect.Parameter.empty
    given = {parameter.name: parameter.default for parameter in signature(dotted).parameters.values()}
    for promise in filter(None, SIGNATURES[dotted].split(", ")):
        parameter, _, default = promise.partition("=")
        assert parameter in given, f"{dotted} has lost {parameter!r}"
        assert given[parameter] == (ast.literal_eval(default) if default else required), parameter


@pytest.mark.parametrize("op", ["linear_attention", "exp_attention", "block_attention"])
def test_the_reference_has_the_signature_of_the_op(op):
    fast, reference = signature(f"linnet.ops.{op}"), signature(f"linnet.ops.reference.{op}")
    assert list(reference.parameters) == list(fast.parameters)


def test_public_names():
    from linnet.testing import check_attention

    functions = {dotted.removeprefix("linnet.") for dotted in SIGNATURES if dotted.count(".") == 1}
    assert functions | {"MultiheadAttention"} <= set(dir(linnet))
    assert issubclass(linnet.MultiheadAttention, importlib.import_module("torch").nn.Module)
    assert callable(check_attention)
    with pytest.raises(AttributeError):
        linnet.create_mixr  # noqa: B018


def test_every_locked_package_has_hashes_but_torch_and_triton():
    def lines(file: str) -> list[str]:
        text = (ROOT / file).read_text().replace("\\\n", "")
        return [line for line in text.splitlines() if not line.startswith("#")]

    pins = lines("requirements.lock")
    for line in pins:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+( +--hash=sha256:[0-9a-f]{64})+", line)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = (needed for extra, needed in project["optional-dependencies"].items() if extra != "peers")
    wanted = {re.split(r"[^a-z0-9-]", line)[0] for needed in (project["dependencies"], *extras) for line in needed}
    apart = {re.split(r"[^a-z0-9-]", line)[0] for line in lines("requirements-torch.txt")}
    assert wanted - {line.split("==")[0] for line in pins} == apart == {"torch", "triton"}


def test_workflows_run_make_targets_on_every_supported_python():
    makefile = (ROOT / "Makefile").read_text()
    workflows = "".join(path.read_text() for path in sorted((ROOT / ".github" / "workflows").glob("*.yml")))
    commands = re.findall(r"- run: (.+)", workflows)
    targets = [re.fullmatch(r"make ([a-z-]+) PYTHON=python", command)[1] for command in commands]
    assert {"test", "test-slow", "docs", "wheels"} <= set(targets)
    assert all(re.search(rf"^{target}:", makefile, re.MULTILINE) for target in targets)
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    versions = [each.rsplit(" ", 1)[1] for each in classifiers if re.search(r":: 3\.\d+$", each)]
    assert re.findall(r"\[(.*3\.\d.*)\]", workflows) == [", ".join(f'"{version}"' for version in versions)]


def test_the_wheel_holds_the_package_its_types_and_its_recipes(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    assert wheel.name == f"linnet_attention-{linnet.__version__}-py3-none-any.whl"
    shipped = {entry for entry in zipfile.ZipFile(wheel).namelist() if "dist-info" not in entry}
    recipes = {f"linnet/{name(path)}" for path in (ROOT / "recipes").rglob("*.toml")}
    package = {name(path) for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert {"linnet/py.typed", "linnet/recipes/smoke.toml"} <= shipped
    assert shipped == package | recipes

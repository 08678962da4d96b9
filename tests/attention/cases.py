"""The registered mechanisms in their forms, which the contract tests run over."""

import linnet

NAMES = linnet.list_attention()
ABOUT = {name: linnet.describe_attention(name) for name in NAMES}
FORMS = [
    (name, causal) for name in NAMES for causal in (True, False) if ABOUT[name]["causal" if causal else "bidirectional"]
]
RECURRENT = [name for name in NAMES if ABOUT[name]["recurrent"]]

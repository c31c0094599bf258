#!/usr/bin/env bash
# Guess: wrapping an optax optimizer in `inject_hyperparams`, which makes its options part of the state (so that a
# checkpoint has the betas), changes neither the update nor the dtypes of the moments.
# What happens (optax 0.2.8, jax 0.10.2): options take the widest dtype of the parameters. If all parameters are
# bfloat16, beta2=0.999 becomes 1.0 and the first update of adam with its own defaults is NaN, without a warning. If
# one parameter is float32, the first moments of bfloat16 parameters become float32 at the first update, and the
# second moments stay in bfloat16.
# Why it matters: the betas of such a state are not those of the code, dtypes differ between the two moments of one
# parameter, and a template made by init does not fit the checkpoint. `hyperparam_dtype=jnp.float32` avoids the NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 optax==0.2.8 numpy==2.4.6
cat > "$folder/run.py" <<'PY'
from importlib.metadata import version

import jax
import jax.numpy as jnp
import optax

for package in ("jax", "optax"):
    print(package, version(package))
half, full = jnp.ones(3, jnp.bfloat16), jnp.ones(3)


def first_update(make, params):
    transformation = make(1e-3)
    state = transformation.init(params)
    gradients = jax.tree.map(lambda x: x * 0.1, params)
    updates, state = transformation.update(gradients, state, params)
    node = getattr(state, "inner_state", state)[0]
    b2 = float(getattr(state, "hyperparams", {}).get("b2", 0.999))
    dtypes = str(node.mu["w"].dtype), str(node.nu["w"].dtype)
    return round(b2, 6), bool(jnp.isnan(updates["w"]).any()), dtypes


injected = optax.inject_hyperparams(optax.adam)
cases = {
    "adam, all bfloat16": (optax.adam, {"w": half}),
    "injected, all bfloat16": (injected, {"w": half}),
    "injected, one more in float32": (injected, {"a": full, "w": half}),
    "injected in float32, all bfloat16": (
        optax.inject_hyperparams(optax.adam, hyperparam_dtype=jnp.float32), {"w": half}
    ),
}
found = {name: first_update(*case) for name, case in cases.items()}
for name, row in found.items():
    print(f"{name}: beta2 {row[0]}, NaN {row[1]}, dtypes of m and v of w {row[2]}")
two, mixed = ("bfloat16", "bfloat16"), ("float32", "bfloat16")
expected = [(0.999, False, two), (1.0, True, two), (0.999, False, mixed), (0.999, False, mixed)]
raise SystemExit([*found.values()] != expected)
PY
"$folder/venv/bin/python" "$folder/run.py"

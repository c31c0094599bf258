#!/usr/bin/env bash
# Guess: two saves of one optimizer state have the same bytes, and a file's content says nothing about its name.
# torch.save(state, path) names the folder inside the zip archive after the file, so saves of equal states under two
# names differ in bytes and hash, and a renamed or copied rank file still names its origin. A stream has "archive".
# Users of optimizer states: files of ranks that were swapped can be recognized without any weights to compare (ZeRO 3
# saves none), and deduplication by hash of optimizer files fails unless they are saved to streams.
set -euo pipefail
folder=$(mktemp -d); trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 numpy==2.4.6
cd "$folder"
"$folder/venv/bin/python" - <<'PY'
import hashlib, io, os, zipfile
import torch
print("torch", torch.__version__)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.AdamW(model.parameters())
model(torch.ones(2, 8)).sum().backward()
optimizer.step()
state = optimizer.state_dict()
hashes, tops = {}, {}
for name in ("rank_0", "rank_1"):
    torch.save(state, f"{name}.pt")
    hashes[name] = hashlib.sha256(open(f"{name}.pt", "rb").read()).hexdigest()[:16]
os.rename("rank_1.pt", "renamed.pt")
stream = io.BytesIO()
torch.save(state, stream)
for name, file in (("rank_0.pt", "rank_0.pt"), ("renamed.pt", "renamed.pt"), ("stream", stream)):
    tops[name] = zipfile.ZipFile(file).namelist()[0].partition("/")[0]
print("sha256 of equal states under two names:", hashes)
print("folder inside the archive:", tops)
assert hashes["rank_0"] != hashes["rank_1"], "equal states now have equal bytes"
assert tops == {"rank_0.pt": "rank_0", "renamed.pt": "rank_1", "stream": "archive"}, tops
PY

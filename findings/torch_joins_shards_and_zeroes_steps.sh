#!/usr/bin/env bash
# Guess: the file that torch's HuggingFaceStorageWriter joins from the shards of all processes
# (enable_consolidation=True) has the tensors of these shards.
# What happens: every 0-d tensor becomes 0; tensors with dimensions are right. Nothing is said.
# Why it matters: an optimizer's `step` is a 0-d tensor. Adam continued from the joined file begins
# its bias correction anew on full moments: the next update is 2.0 times the right one after step
# 7 and 0.40 of it after step 1000 (betas 0.9, 0.999). The shards in `sharded/` are right.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet torch==2.13.0 safetensors==0.8.0 numpy==2.4.6
cat > save.py <<'PY'
import sys, warnings
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

def save(rank, out):
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", init_method=f"file://{out}/store", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    state = {"w.exp_avg": distribute_tensor(torch.ones(4, 2), mesh, [Shard(0)]),
             "w.step": torch.tensor(7.0)}
    writer = HuggingFaceStorageWriter(f"{out}/saved", save_distributed=True, enable_consolidation=True)
    dcp.save(state, storage_writer=writer)
    dist.destroy_process_group()

if __name__ == "__main__":
    out = sys.argv[1]
    mp.spawn(save, (out,), nprocs=2)
    joined = load_file(f"{out}/saved/model-00001-of-00001.safetensors")
    shards = [load_file(f"{out}/saved/sharded/shard-0000{n}-model-00001-of-00001.safetensors") for n in (1, 2)]
    step = next(shard["w.step"].item() for shard in shards if "w.step" in shard)
    print("torch", torch.__version__)
    print("step in the shards:", step, "| in the joined file:", joined["w.step"].item())
    print("exp_avg in the joined file:", joined["w.exp_avg"].tolist())
    assert step == 7.0 and joined["w.exp_avg"].eq(1).all()
    assert joined["w.step"].item() == 0.0, "torch keeps 0-d tensors now"
PY
OMP_NUM_THREADS=1 venv/bin/python save.py "$folder"

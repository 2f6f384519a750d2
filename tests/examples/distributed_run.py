"""What two processes under torchrun do for test_distributed.py: an unbroken run, and one that is resumed."""

import importlib.util
import sys
from pathlib import Path

import torch
import torch.distributed as dist


def main(script: Path, folder: Path) -> None:
    spec = importlib.util.spec_from_file_location("example_distributed", script)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    dist.init_process_group("gloo")
    unbroken = example.main(steps=4)
    example.main(steps=2, checkpoint=folder / "run.pt")
    resumed = example.main(steps=4, checkpoint=folder / "run.pt")
    states = {"unbroken": unbroken.state_dict(), "resumed": resumed.state_dict()}
    torch.save(states, folder / f"rank{dist.get_rank()}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Path(sys.argv[1]), Path(sys.argv[2]))

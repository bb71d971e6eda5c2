"""Ask how some GPUs should train GPT-2: alone, side by side, or in a row.

    python examples/tune_gpus.py --gpus 4 --batch 128 --folder best

Prints the table of all layouts, by the prices of a device that need not be here, and
writes the plan and DeepSpeed's configuration of the fastest. ``partitioner tune`` is
the same on the command line.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from gpt2_train import build_model, example_inputs

from partitioner import tune


def main() -> None:
    """Tune, print, and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpus", type=int, default=4)
    parser.add_argument("--batch", type=int, default=128, help="samples of a step")
    parser.add_argument("--device", default="h100")
    parser.add_argument("--folder", type=Path, help="where to write the best")
    options = parser.parse_args()

    tuning = tune(
        build_model(),
        gpus=options.gpus,
        batch=options.batch,
        example_inputs=example_inputs,
        device=options.device,
        no_cut_inside=["transformer.h.*"],  # whole layers are quicker to plan
    )
    print(tuning)
    if options.folder and tuning.best:
        tuning.save(options.folder)
        print(f"plan.json and ds_config.json written to {options.folder}")


if __name__ == "__main__":
    main()

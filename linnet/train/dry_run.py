"""A dry run: everything that can be checked before training, and the plan of the run; nothing is written."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from linnet.config import RunConfig
from linnet.registry import TASK
from linnet.screen import Screen
from linnet.train.check import check_config_tables
from linnet.train.environment import check_environment
from linnet.train.footprint import rank_footprint
from linnet.train.fresh import change_fresh_data, fresh_config
from linnet.train.run import Run
from linnet.train.size import size_in_samples, size_in_tokens

FEW = 10  # samples that a dry run generates


def dry_run(config: RunConfig, screen: Screen) -> dict[str, Any]:
    """Check everything that can be checked without training, write nothing, and return the plan.

    Generating all data may take long, so only a few samples are generated.
    """
    check_config_tables(config)
    check_environment(config)
    config = fresh_config(config)
    made, data = TASK[config.task].generated(config.data), config.data
    few = {"count": min(FEW, sum(made.values()))} if made else {}
    with TemporaryDirectory() as cache:
        run = Run(change_fresh_data(config, few), None, screen, Path(cache), planned=True)
        if config.distributed is not None and config.distributed.mesh:
            run.world = math.prod(config.distributed.mesh.values())
        run.check()
        if run.lack is not None:
            screen.warn(run.lack)
        planned = {"samples": made} if made else run.task.planned()
        run.remark()
        batch = None if "estimated" in planned else run.task.train_batch(0)
        footprint = rank_footprint(run.task, config, run.skeleton, run.world, batch)
    return {
        "config": run.config.model_copy(update={"data": data}).model_dump(mode="json", exclude_none=True),
        "parameters": run.parameters,
        **planned,
        "context": run.task.data.context,
        "drawn": size_in_samples(config),
        "tokens": size_in_tokens(config),
        "memory": footprint,
    }

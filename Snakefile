# One experiment: one config file, one comparison. `snakemake --cores all --use-singularity` runs it in containers,
# `snakemake --cores all` on this machine's own environment.
from snakemake.utils import min_version

min_version("9.0")


include: "workflow/rules/common.smk"


# A file given by --configfile is a whole experiment: it takes the place of config.yaml and is not merged into it.
if not workflow.overwrite_configfiles:
    read_config("config.yaml")


include: "workflow/rules/experiment.smk"
include: "workflow/rules/containers.smk"
include: "workflow/rules/image.smk"
include: "workflow/rules/fetch_model.smk"
include: "workflow/rules/pull_data.smk"
include: "workflow/rules/init_tracking.smk"
include: "workflow/rules/prepare.smk"
include: "workflow/rules/sft.smk"
include: "workflow/rules/reward_model.smk"
include: "workflow/rules/sample.smk"
include: "workflow/rules/rank.smk"
include: "workflow/rules/post_train.smk"
include: "workflow/rules/evaluate.smk"
include: "workflow/rules/compare.smk"


localrules:
    all,
    fetch_model,
    pull_data,
    init_tracking,
    image,


rule all:
    default_target: True
    input:
        COMPARE / "manifest.json",


onstart:
    require_gpus()


onerror:
    repeat_errors()

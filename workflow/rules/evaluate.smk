rule evaluate:
    input:
        unpack(evaluated_run),
        data=RESULTS / "data" / "manifest.json",
        sft=RESULTS / "sft" / "manifest.json",
        reward_model=RESULTS / "reward_model" / "manifest.json",
        tracking=TRACKING,
        image=IMAGE,
    output:
        manifest=RESULTS / "eval" / "{name}" / "manifest.json",
    log:
        LOGS / "evaluate" / "{name}.log",
    wildcard_constraints:
        name=any_of(["sft", *RUNS]),
    container:
        IMAGE_FILE
    threads: THREADS
    resources:
        gpu=GPUS,
        mem_mb=MEMORY,
    params:
        **triggers("evaluate"),
        arguments=arguments,
    message:
        "evaluate {wildcards.name}: write on the held-out prompts and measure"
    shell:
        "exec python -m posttrain evaluate --run {wildcards.name} {params.arguments} > {log} 2>&1"

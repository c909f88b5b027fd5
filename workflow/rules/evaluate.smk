rule evaluate:
    input:
        unpack(evaluated_run),
        model=RESULTS / "model" / "manifest.json",
        data=RESULTS / "data" / "manifest.json",
        sft=RESULTS / "sft" / "manifest.json",
        reward_model=RESULTS / "reward_model" / "manifest.json",
        # Its content makes the rule run again, below: a time stamp does not.
        judge=ancient(outside(JUDGE) or JUDGE) if JUDGE else [],
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
    threads: THREADS("evaluate")
    resources:
        gpu=GPUS,
        mem_mb=MEMORY,
    params:
        **triggers("evaluate"),
        judge=lambda wildcards: f"evaluation.judge holds: {JUDGE_HOLDS}",
        arguments=arguments,
    message:
        "evaluate {wildcards.name}: write on the held-out prompts and measure"
    shell:
        "exec python -m posttrain evaluate --run {wildcards.name} {params.arguments} > {log} 2>&1"

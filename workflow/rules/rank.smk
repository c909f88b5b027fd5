rule rank:
    input:
        samples=RESULTS / "samples" / "manifest.json",
        reward_model=RESULTS / "reward_model" / "manifest.json",
        tracking=TRACKING,
        image=IMAGE,
    output:
        manifest=RESULTS / "preferences" / "manifest.json",
    log:
        LOGS / "rank.log",
    priority: 2
    container:
        IMAGE_FILE
    threads: THREADS("rank")
    resources:
        gpu=GPUS,
        mem_mb=MEMORY,
    params:
        **triggers("rank"),
        arguments=arguments,
    message:
        "rank: score the samples and pair them"
    shell:
        "exec python -m posttrain rank {params.arguments} > {log} 2>&1"

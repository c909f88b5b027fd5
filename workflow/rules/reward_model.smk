rule reward_model:
    input:
        data=RESULTS / "data" / "manifest.json",
        sft=RESULTS / "sft" / "manifest.json",
        tracking=TRACKING,
        image=IMAGE,
    output:
        manifest=RESULTS / "reward_model" / "manifest.json",
    log:
        LOGS / "reward_model.log",
    priority: 3
    container:
        IMAGE_FILE
    threads: THREADS("reward_model")
    resources:
        gpu=GPUS,
        mem_mb=MEMORY,
    params:
        **triggers("reward_model"),
        arguments=arguments,
    message:
        "reward_model: learn what people rate higher"
    shell:
        "exec python -m posttrain reward_model {params.arguments} > {log} 2>&1"

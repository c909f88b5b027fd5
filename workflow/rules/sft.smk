rule sft:
    input:
        data=RESULTS / "data" / "manifest.json",
        model=RESULTS / "model" / "manifest.json",
        tracking=TRACKING,
        image=IMAGE,
    output:
        manifest=RESULTS / "sft" / "manifest.json",
    log:
        LOGS / "sft.log",
    container:
        IMAGE_FILE
    threads: THREADS("sft")
    resources:
        gpu=GPUS,
        mem_mb=MEMORY,
    params:
        **triggers("sft"),
        arguments=arguments,
    message:
        "sft: fine-tune the base model on prompts and completions"
    shell:
        "exec python -m posttrain sft {params.arguments} > {log} 2>&1"

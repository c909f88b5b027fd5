rule sample:
    input:
        data=RESULTS / "data" / "manifest.json",
        sft=RESULTS / "sft" / "manifest.json",
        tracking=TRACKING,
        image=IMAGE,
    output:
        manifest=RESULTS / "samples" / "manifest.json",
    log:
        LOGS / "sample.log",
    priority: 2
    container:
        IMAGE_FILE
    threads: THREADS("sample")
    resources:
        gpu=GPUS,
        mem_mb=MEMORY,
    params:
        **triggers("sample"),
        arguments=arguments,
    message:
        "sample: write completions with the SFT model"
    shell:
        "exec python -m posttrain sample {params.arguments} > {log} 2>&1"

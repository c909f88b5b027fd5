rule prepare:
    input:
        raw=RESULTS / "data_verified.json",
        model=RESULTS / "model" / "manifest.json",
        tracking=TRACKING,
        image=IMAGE,
    output:
        manifest=RESULTS / "data" / "manifest.json",
    log:
        LOGS / "prepare.log",
    container:
        IMAGE_FILE
    threads: 1
    resources:
        gpu=0,
        mem_mb=MEMORY,
    params:
        **triggers("prepare"),
        arguments=arguments,
    message:
        "prepare: validate, split and tokenise the rows"
    shell:
        "exec python -m posttrain prepare {params.arguments} > {log} 2>&1"

rule post_train:
    input:
        unpack(teachers),
        unpack(own_files),
        data=RESULTS / "data" / "manifest.json",
        sft=RESULTS / "sft" / "manifest.json",
        tracking=TRACKING,
        image=IMAGE,
    output:
        manifest=RESULTS / "runs" / "{run}" / "manifest.json",
    log:
        LOGS / "post_train" / "{run}.log",
    wildcard_constraints:
        run=any_of(RUNS),
    priority: 1
    container:
        IMAGE_FILE
    threads: THREADS("post_train")
    resources:
        gpu=GPUS,
        mem_mb=MEMORY,
    params:
        **triggers("post_train"),
        own=own_code,
        arguments=arguments,
    message:
        "post_train {wildcards.run}: train from the SFT model"
    shell:
        "exec python -m posttrain post_train --run {wildcards.run} {params.arguments} > {log} 2>&1"

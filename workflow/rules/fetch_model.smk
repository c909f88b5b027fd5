rule fetch_model:
    output:
        manifest=RESULTS / "model" / "manifest.json",
    log:
        LOGS / "fetch_model.log",
    container:
        on_host
    threads: 1
    resources:
        gpu=0,
        mem_mb=MEMORY,
    params:
        **triggers("fetch_model", image=False),
        source=lambda wildcards: f"model.base holds: {MODEL_SOURCE}",
        arguments=arguments,
    message:
        "fetch_model: get the base model"
    shell:
        "exec python -m posttrain fetch_model {params.arguments} > {log} 2>&1"

# An altered file of the data folder is a reason to run, and then the error that this rule stops with.
rule pull_data:
    input:
        dvc=f"{EXPERIMENT.data.path}.dvc",
    output:
        verified=RESULTS / "data_verified.json",
    log:
        LOGS / "pull_data.log",
    container:
        on_host
    threads: 1
    resources:
        gpu=0,
        mem_mb=1000,
    params:
        state=lambda wildcards: f"not as {EXPERIMENT.data.path}.dvc says: {', '.join(DATA_STATE) or 'nothing'}",
        arguments=arguments,
    message:
        "pull_data: fetch what DVC tracks and verify every file"
    shell:
        "exec python -m posttrain pull_data {params.arguments} > {log} 2>&1"

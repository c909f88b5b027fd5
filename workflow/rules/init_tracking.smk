# Before any job logs: eight jobs that create or migrate one database at once would spoil it.
rule init_tracking:
    output:
        tracking=RESULTS / "tracking.json",
    log:
        LOGS / "init_tracking.log",
    container:
        on_host
    threads: 1
    resources:
        gpu=0,
        mem_mb=1000,
    params:
        uri=lambda wildcards: f"uri: {mask(STORE.uri)}",
        arguments=arguments,
    message:
        "init_tracking: create or migrate the MLflow store"
    shell:
        "exec python -m posttrain init_tracking {params.arguments} > {log} 2>&1"

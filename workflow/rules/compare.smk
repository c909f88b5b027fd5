rule compare:
    input:
        data=RESULTS / "data" / "manifest.json",
        evaluations=expand(RESULTS / "eval" / "{name}" / "manifest.json", name=["sft", *RUNS]),
        runs=expand(RESULTS / "runs" / "{run}" / "manifest.json", run=RUNS),
        tracking=TRACKING,
        image=IMAGE,
    output:
        manifest=COMPARE / "manifest.json",
        summary=report(COMPARE / "summary.csv", category="Comparison"),
        page=report(COMPARE / "report.html", category="Comparison"),
        pictures=[report(COMPARE / name, category="Comparison") for name in PICTURES],
    log:
        LOGS / "compare.log",
    container:
        IMAGE_FILE
    threads: 1
    resources:
        gpu=0,
        mem_mb=MEMORY,
    params:
        **triggers("compare"),
        arguments=arguments,
    message:
        "compare: one table and one page for all runs"
    shell:
        "exec python -m posttrain compare {params.arguments} > {log} 2>&1"

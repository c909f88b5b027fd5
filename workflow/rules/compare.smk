rule compare:
    input:
        data=RESULTS / "data" / "manifest.json",
        reward_model=RESULTS / "reward_model" / "manifest.json",
        evaluations=expand(RESULTS / "eval" / "{name}" / "manifest.json", name=["sft", *RUNS]),
        runs=expand(RESULTS / "runs" / "{run}" / "manifest.json", run=RUNS),
        tracking=TRACKING,
        image=IMAGE,
    output:
        manifest=COMPARE / "manifest.json",
        summary=report(COMPARE / "summary.csv", category="Comparison", caption="../report/summary.rst"),
        seeds=report(COMPARE / "seeds.csv", category="Comparison", caption="../report/seeds.rst"),
        page=report(COMPARE / "report.html", category="Comparison", caption="../report/report.rst"),
        pictures=[
            report(COMPARE / f"{name}.png", category="Comparison", caption=f"../report/{name}.rst")
            for name in PICTURES
        ],
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

# Builds what is missing. The name of the file holds the image's id, so a changed recipe or lock file is another file.
rule image:
    output:
        sif=IMAGE_FILE,
    log:
        LOGS / "image.log",
    container:
        on_host
    threads: 1
    resources:
        gpu=0,
        mem_mb=4000,
    params:
        script=lambda wildcards, output: shlex.quote(f"{workflow.basedir}/docker/build_sif.py"),
        name=IMAGE_NAME,
    message:
        "image: build {output.sif} (2 to 5 minutes, once)"
    shell:
        "python {params.script} {params.name} {output.sif} 2>&1 | tee {log}"

# Where stages run: in this machine's Python environment, or in containers where the user asks for them.
from snakemake.settings.types import DeploymentMethod

from posttrain.provenance.commit import current_commit
from posttrain.provenance.images import image_id, image_path

IMAGE_NAME = EXPERIMENT.resources.image
IMAGE_ID = or_stop(image_id, IMAGE_NAME)
IMAGE_FILE = str(image_path(IMAGE_NAME))
IN_CONTAINERS = DeploymentMethod.APPTAINER in workflow.deployment_settings.deployment_method
CUDA = EXPERIMENT.resources.device == "cuda"


# Variables of the user that stages in containers see. All others stay outside.
PASSED_ON = (
    "MLFLOW_TRACKING_",
    "CUDA_VISIBLE_DEVICES",
    "POSTTRAIN_DIE_WITH_PARENT",
    *("HF_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"),  # `prepare` may read a data set from the hub
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy"),
)


def on_host(wildcards):
    """No container, for what only the host has: DVC, the cache of models, Apptainer itself."""


def image_param(wildcards):
    """Return what a stage runs in. The id covers the recipe and the lock file, which the host's environment has too."""
    return f"image: {IMAGE_NAME if IN_CONTAINERS else 'host'} {IMAGE_ID[:12]}"


def outside(path):
    """Return the real path where it is not below the working directory, which is all that a container sees."""
    real = Path(path).resolve()
    return None if real.is_relative_to(Path.cwd().resolve()) else real


def cache_folders(data):
    """Return the folders outside the working directory that DVC's links in the data folder lead to."""
    links = (path.resolve().parent for path in Path(data).rglob("*") if path.is_symlink())
    return {real for real in links if outside(real)}


def binds():
    """Yield source and mode of every folder or file that a container needs beside the working directory."""
    for path, mode in ((workflow.basedir, "ro"), (EXPERIMENT.data.path, "ro"), (RESULTS, "rw")):
        if outside(path):
            yield outside(path), mode
    if STORE.database and outside(STORE.database):
        yield outside(STORE.database).parent, "rw"
    for path in sorted(cache_folders(EXPERIMENT.data.path)):
        yield path, "ro"
    for path in [*filter(None, [JUDGE]), *(path for files in OWN_FILES.values() for path in files.values())]:
        if outside(path):
            yield outside(path), "ro"


def container_arguments():
    """Return Apptainer's options: the environment stays outside, and folders only get in if a stage needs them."""
    words = ["--cleanenv"]
    for path, mode in binds():
        words += ["--bind", f"{path}:{path}:{mode}"]
    if CUDA:
        words.append("--nv")
    return shlex.join(words)


def pass_in(runtime):
    """Set what --cleanenv lets through. As variables, values show on no command line.

    HOME is the working directory there, so caches are given a folder that nobody has to look at.
    """
    caches = Path(".snakemake").absolute() / "containers"
    inside = {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}
    inside |= {"PYTHONNOUSERSITE": "1", "PYTHONPATH": str(workflow.basedir)}
    commit, dirty = current_commit(Path(workflow.basedir))  # there is no git in there
    if commit:
        inside["POSTTRAIN_COMMIT"] = f"{commit}-dirty" if dirty else commit
    inside |= {"XDG_CACHE_HOME": str(caches / "cache"), "XDG_CONFIG_HOME": str(caches / "config")}
    os.environ.update({f"{runtime.upper()}ENV_{name}": value for name, value in inside.items()})


def use_containers():
    runtime = next((name for name in ("apptainer", "singularity") if shutil.which(name)), None)
    if runtime is None:
        stop("no Apptainer or Singularity on PATH; type `make apptainer`, or leave --use-singularity out")
    if any(map(str.isspace, IMAGE_FILE)):
        stop(
            f"{IMAGE_FILE}: Snakemake takes no image whose path has a space; set POSTTRAIN_CACHE to a folder without one"
        )
    pass_in(runtime)
    if workflow.is_main_process:  # jobs in processes of their own are given these arguments by this one
        settings = workflow.deployment_settings
        settings.apptainer_args = f"{settings.apptainer_args} {container_arguments()}".strip()


def gpus_present():
    """Return how many GPUs this machine lets us use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([device for device in visible.split(",") if device.strip()])
    if not shutil.which("nvidia-smi"):
        return 0
    listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True).stdout
    return sum(line.startswith("GPU ") for line in listing.splitlines())


def limit_gpus():
    """Let no more jobs run at once than there are GPUs for; a plan is made on a machine without any, too."""
    present = max(gpus_present(), EXPERIMENT.resources.gpus)
    asked = workflow.global_resources.get("gpu")
    workflow.register_resource("gpu", min(present, asked.value) if asked and asked.value else present)


def require_gpus():
    """Stop where the jobs that are to start now have too few GPUs."""
    present, wanted = gpus_present(), EXPERIMENT.resources.gpus
    if CUDA and present < wanted:
        stop(
            f"resources.gpus: {wanted} wanted, {present} found (nvidia-smi -L); set resources.device: cpu or gpus lower"
        )


if IN_CONTAINERS:
    use_containers()
else:
    say("stages run in this machine's Python environment (image: host); --use-singularity runs them in containers")
if CUDA:
    limit_gpus()

IMAGE = [ancient(IMAGE_FILE)] if IN_CONTAINERS else []
THREADS = EXPERIMENT.resources.threads_of
MEMORY = EXPERIMENT.resources.mem_mb
GPUS = EXPERIMENT.resources.gpus if CUDA else 0

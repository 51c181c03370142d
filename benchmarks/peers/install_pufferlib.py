"""Build PufferLib 3.0.0 without its Ocean envs, which it would download libraries for.

Its setup.py does not build so as it is: (a) it takes the CUDA path wherever an `nvcc` is found, (b) with NO_OCEAN=1
`c_extension_paths` is not defined. Both are patched; neptune and wandb, which this does not use, are left out."""
import os, pathlib, subprocess, sys, tempfile
constraints = sys.argv[1:]
pip = [sys.executable, "-m", "pip"]
with tempfile.TemporaryDirectory() as folder:
    # The download ends in an error, after unpacking, because it runs setup.py: what it unpacked is what is wanted.
    subprocess.run([*pip, "download", "-q", "--no-deps", "--no-clean", "--no-binary", "pufferlib", "--no-build-isolation", "-d", folder, "pufferlib==3.0.0"], env={**os.environ, "TMPDIR": folder, "NO_OCEAN": "1"}, cwd=folder, capture_output=True)
    source = next(pathlib.Path(folder).glob("**/setup.py"), None)
    if source is None: sys.exit("the source of pufferlib 3.0.0 cannot be downloaded")
    text = source.read_text()
    for old, new in (("c_extensions = []\n", "c_extensions = []\nc_extension_paths = []\n"), ('shutil.which("nvcc")', "False"), ("        'neptune',\n        'wandb',\n", ""), ("extra_objects=[RAYLIB_A]", "extra_objects=[]")):
        assert old in text, f"setup.py has no {old!r}"; text = text.replace(old, new, 1)
    source.write_text(text)
    subprocess.run([*pip, "install", "-q", "--no-build-isolation", *constraints, str(source.parent)], env={**os.environ, "NO_OCEAN": "1"}, check=True)

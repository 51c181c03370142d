"""Give Sample Factory's ale-py 0.8 the Atari ROMs, which it does not bring: those of the wheel of ale-py 0.12.1.

They are the same files; AutoROM, which the older one expects, fetches them from elsewhere."""
import pathlib, subprocess, sys, tempfile, zipfile
import ale_py
roms = pathlib.Path(ale_py.__file__).parent / "roms"
with tempfile.TemporaryDirectory() as folder:
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "-d", folder, "ale-py==0.12.1"], check=True)
    wheel = zipfile.ZipFile(next(pathlib.Path(folder).glob("*.whl"))); count = 0
    for name in wheel.namelist():
        if name.startswith("ale_py/roms/") and name.endswith(".bin"): (roms / pathlib.PurePath(name).name).write_bytes(wheel.read(name)); count += 1
assert count > 50, f"only {count} ROMs in the wheel"
print(count, "ROMs")

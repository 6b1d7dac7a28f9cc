"""Shared by processes: layout, segments, ready pool, doorbells. Imports nothing else of ours."""

assert __name__ == "aspen_mp.shm", "import aspen_mp.shm, not shm: run Python outside the repository's top folder or install the package"

assert __name__ == "aspen_mp.workers", (
    "import aspen_mp.workers, not workers: run Python outside the repository's top folder or install the package"
)

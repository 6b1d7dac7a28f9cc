assert __name__ == "aspen_mp.planner", (
    "import aspen_mp.planner, not planner: run Python outside the repository's top folder or install the package"
)

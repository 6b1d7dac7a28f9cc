assert __name__ == "aspen_mp.bench", "import aspen_mp.bench, not bench"

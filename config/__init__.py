assert __name__ == "aspen_mp.config", "import aspen_mp.config, not config"

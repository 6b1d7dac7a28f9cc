"""`aspen-mp bench`: a typer app that the command line mounts when it is asked for one of these commands."""

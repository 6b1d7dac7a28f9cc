"""aspen-mp beside other runtimes on the same models, inputs and cores (`python -m aspen_mp.bench.peers resnet50 --threads 2`)."""

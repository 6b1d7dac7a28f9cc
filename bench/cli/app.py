"""The commands of `aspen-mp bench`; each imports what it measures when it runs."""

from __future__ import annotations

import typer

from aspen_mp.bench.cli import cameras, coexecution, figures, load, networks, ray, render, serve, stacks, stream, torch
from aspen_mp.cli import options

app = typer.Typer(
    name="bench",
    help="Measure networks beside other runtimes, and kernels beside the limits of the machine.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
for _command, *_calls in (
    (networks.peers, "bench peers resnet50 bert_base@seq=480 --threads 1,2 --output peers.json"),
    (networks.defaults, "bench defaults resnet50 bert_base --engines aspen-mp,onnxruntime,openvino"),
    (networks.kernels, "bench kernels resnet50 --each"),
    (networks.prediction, "bench prediction resnet50 --workers 1,2"),
    (load.elastic, "bench elastic resnet50 --steps 1,2,1 --plot elastic.png"),
    (load.storm, "bench storm resnet50 --seconds 60 --plot storm.png"),
    (load.churn, "bench churn resnet50 --changes 200"),
    (networks.shapes, "bench shapes resnet50 --folder shapes"),
    (load.clients, "bench clients resnet50 --processes 4 --plot clients.png"),
    (figures.hetero, "bench hetero resnet50 --speeds 1,0.5 --plot hetero.png"),
    (figures.scaling, "bench scaling resnet50 --threads 1,2 --simulate 16,64"),
    (figures.barriers, "bench barriers resnet50 --plot barriers.png"),
    (figures.order, "bench order resnet50 --plot order.png"),
    (figures.tiles, "bench tiles resnet50 --tiles 8,16,32 --plot tiles.png"),
    (figures.synthetic, "bench synthetic --layers 16 --channels 64"),
    (
        stacks.stacks,
        "bench stacks --blocks 1,10,40 --plot stacks.png",
        "bench stacks sppf poolformer",
        "bench stacks --batches 1,8",
        "bench stacks --table",
    ),
    (stream.stream, "bench stream", "bench stream yolov3@image=640 --percent 0,1,5 --rounds 5"),
    (cameras.cameras, "bench cameras", "bench cameras yolov3@image=640,decode=1 --cameras 2 --noise 0.02"),
    (figures.sizes, "bench sizes resnet50 mobilenet_v2", "bench sizes detector.onnx --multiple 32"),
    (figures.lengths, "bench lengths bert_base --requests 100", "bench lengths smollm2_135m --decode 200"),
    (
        coexecution.together,
        "bench together gpt2@seq=1 resnet50 --ratio 3,1",
        "bench together resnet50 bert_base mobilenet_v2 --pairs --rounds 3",
    ),
    (coexecution.priority, "bench priority mobilenet_v2 --every 30 --load vgg16 --in-flight 3 --plot priority.png"),
    (coexecution.deadlines, "bench deadlines --loads 0.5,0.9,1.5 --plot deadlines.png"),
    (coexecution.dynamic, "bench dynamic resnet50 resnet50+bert_base bert_base --plot dynamic.png"),
    (coexecution.contention, "bench contention --plot contention.png"),
    (coexecution.coplans, "bench coplans 3*gpt2@seq=1+resnet50 --cores 8P+8E --cores 2"),
    (torch.torch, "bench torch 'torchvision/*' --engines aspen-mp,eager,inductor --plot torch.png", "bench torch --list"),
    (ray.ray, "bench ray mobilenet_v2@batch=16 --actors 1,4,16 --plot ray.png"),
    (serve.serve, "bench serve mobilenet_v2 --clients 1,16", "bench serve resnet50 --transports http --clients 1 --rates 10,20"),
    (networks.agreement, "bench agreement resnet50 --output errors.json"),
    (render.render, "bench render --check"),
):
    app.command(epilog=options.examples(*_calls))(_command)

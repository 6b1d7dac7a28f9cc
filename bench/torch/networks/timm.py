"""Networks of timm, one or two of each family."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch

from aspen_mp.bench.torch.networks.network import Size, TorchNetwork, image

PACKAGE = "timm"


def _make(full: str, small: str, options: Mapping[str, Any], size: Size) -> torch.nn.Module:
    timm = importlib.import_module("timm")
    name, chosen = (small, {"num_classes": 10, **options}) if size == "small" else (full, {})
    built: torch.nn.Module = timm.create_model(name, pretrained=False, **chosen)
    return built


_LISTED: list[tuple[str, str, str, int, int, Mapping[str, Any]]] = [
    ("resnet", "resnet26d", "test_resnet", 64, 224, {}),
    ("resnest", "resnest14d", "resnest14d", 64, 224, {}),
    ("res2net", "res2net50_26w_4s", "res2net50_26w_4s", 64, 224, {"layers": [1, 1, 1, 1]}),
    ("sknet", "skresnet18", "skresnet18", 64, 224, {"layers": [1, 1, 1, 1]}),
    ("byobnet", "repvgg_a0", "test_byobnet", 64, 224, {}),
    ("mobileone", "mobileone_s0", "mobileone_s0", 64, 224, {}),
    ("efficientnet", "tf_efficientnet_b0", "test_efficientnet", 64, 224, {}),
    ("mobilenetv4", "mobilenetv4_conv_small", "mobilenetv4_conv_small_035", 64, 224, {}),
    ("mobilenetv4", "mobilenetv4_hybrid_medium", "mobilenetv4_hybrid_medium", 64, 224, {}),
    ("lcnet", "lcnet_050", "lcnet_035", 64, 224, {}),
    ("tinynet", "tinynet_e", "tinynet_e", 64, 106, {}),
    ("mixnet", "mixnet_s", "mixnet_s", 64, 224, {}),
    ("ghostnet", "ghostnet_100", "ghostnet_050", 64, 224, {}),
    ("ghostnet", "ghostnetv2_100", "ghostnetv2_100", 64, 224, {}),
    ("regnet", "regnetz_005", "regnetz_005", 64, 224, {}),
    ("nfnet", "dm_nfnet_f0", "test_nfnet", 64, 192, {}),
    ("convnext", "convnext_atto", "test_convnext", 64, 224, {}),
    ("convnext", "convnextv2_atto", "test_convnext3", 64, 224, {}),
    ("hgnet", "hgnetv2_b0", "hgnetv2_b0", 64, 224, {}),
    ("dla", "dla34", "dla46x_c", 64, 224, {}),
    ("dpn", "dpn68", "dpn48b", 64, 224, {}),
    ("hrnet", "hrnet_w18_small", "hrnet_w18_small", 64, 224, {}),
    ("vovnet", "ese_vovnet19b_slim", "ese_vovnet19b_slim_dw", 64, 224, {}),
    ("cspnet", "cspresnet50", "cs3darknet_focus_s", 64, 256, {}),
    ("inception_next", "inception_next_atto", "inception_next_atto", 64, 224, {}),
    ("xception", "xception41", "xception41", 64, 299, {}),
    ("rexnet", "rexnet_100", "rexnetr_100", 64, 224, {}),
    ("vit", "vit_tiny_patch16_224", "test_vit", 160, 224, {}),
    ("vit", "vit_relpos_small_patch16_224", "test_vit4", 160, 224, {}),
    ("deit", "deit_tiny_distilled_patch16_224", "deit_tiny_distilled_patch16_224", 224, 224, {"embed_dim": 48, "depth": 2}),
    ("eva", "eva02_tiny_patch14_224", "eva02_tiny_patch14_224", 56, 224, {"img_size": 56, "embed_dim": 48, "depth": 2}),
    ("beit", "beit_base_patch16_224", "beit_base_patch16_224", 64, 224, {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3}),
    ("cait", "cait_xxs24_224", "cait_xxs24_224", 64, 224, {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3}),
    ("xcit", "xcit_nano_12_p16_224", "xcit_nano_12_p16_224", 64, 224, {"img_size": 64, "embed_dim": 48, "depth": 2, "num_heads": 3}),
    ("swin", "swin_tiny_patch4_window7_224", "swin_tiny_patch4_window7_224", 56, 224,
     {"img_size": 56, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}),
    ("swin", "swinv2_cr_tiny_224", "swinv2_cr_tiny_224", 64, 224,
     {"img_size": 64, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}),
    ("mixer", "mixer_s16_224", "mixer_s16_224", 64, 224, {"img_size": 64}),
    ("mixer", "resmlp_12_224", "resmlp_12_224", 64, 224, {"img_size": 64}),
    ("mixer", "gmlp_s16_224", "gmlp_s16_224", 64, 224, {"img_size": 64}),
    ("convmixer", "convmixer_768_32", "convmixer_768_32", 64, 224, {}),
    ("mobilevit", "mobilevit_xxs", "mobilevit_xxs", 64, 256, {}),
    ("mobilevit", "mobilevitv2_050", "mobilevitv2_050", 64, 256, {}),
    ("levit", "levit_128s", "levit_128s", 224, 224, {}),
    ("poolformer", "poolformer_s12", "poolformer_s12", 64, 224, {}),
    ("caformer", "caformer_s18", "caformer_s18", 64, 224, {}),
    ("coatnet", "coatnet_nano_rw_224", "coatnet_nano_rw_224", 224, 224,
     {"embed_dim": (32, 32, 64, 64), "depths": (1, 1, 1, 1), "stem_width": 16}),
    ("maxvit", "maxvit_nano_rw_256", "maxvit_nano_rw_256", 256, 256,
     {"embed_dim": (32, 32, 64, 64), "depths": (1, 1, 1, 1), "stem_width": 16}),
    ("edgenext", "edgenext_xx_small", "edgenext_xx_small", 64, 256, {}),
    ("efficientformer", "efficientformer_l1", "efficientformer_l1", 224, 224, {"depths": (1, 1, 1, 2), "embed_dims": (16, 32, 64, 96)}),
    ("efficientvit", "efficientvit_b0", "efficientvit_b0", 64, 224, {}),
    ("efficientvit", "efficientvit_m0", "efficientvit_m0", 224, 224, {}),
    ("fastvit", "fastvit_t8", "fastvit_t8", 64, 256, {}),
    ("repvit", "repvit_m0_9", "repvit_m0_9", 64, 224, {}),
    ("starnet", "starnet_s1", "starnet_s050", 64, 224, {}),
    ("pvt", "pvt_v2_b0", "pvt_v2_b0", 64, 224, {}),
    ("twins", "twins_svt_small", "twins_svt_small", 224, 224, {"embed_dims": (16, 32, 64, 128), "depths": (1, 1, 2, 1)}),
    ("crossvit", "crossvit_9_240", "crossvit_9_240", 240, 240, {}),
    ("focalnet", "focalnet_tiny_srf", "focalnet_tiny_srf", 64, 224, {}),
    ("gcvit", "gcvit_xxtiny", "gcvit_xxtiny", 224, 224, {}),
    ("pit", "pit_ti_224", "pit_ti_224", 224, 224, {"depth": (1, 1, 1)}),
    ("visformer", "visformer_tiny", "visformer_tiny", 224, 224, {}),
    ("volo", "volo_d1_224", "volo_d1_224", 224, 224, {}),
    ("mvitv2", "mvitv2_tiny", "mvitv2_tiny", 224, 224, {}),
    ("davit", "davit_tiny", "davit_tiny", 64, 224, {"embed_dims": (24, 48, 96, 192), "depths": (1, 1, 1, 1)}),
    ("nextvit", "nextvit_small", "nextvit_small", 64, 224, {}),
    ("mambaout", "mambaout_femto", "test_mambaout", 64, 224, {}),
    ("tiny_vit", "tiny_vit_5m_224", "tiny_vit_5m_224", 224, 224, {}),
    ("sequencer2d", "sequencer2d_s", "sequencer2d_s", 224, 224, {"layers": (1, 1, 1, 1)}),
]  # fmt: skip
"""Family, the network at its full size, the one that stands for it in tests, pixels a side of both, options of the latter."""

NETWORKS = [
    TorchNetwork(f"timm/{full}", family, PACKAGE, partial(_make, full, small, options), image(side, whole))
    for family, full, small, side, whole, options in _LISTED
]
"""All of them."""

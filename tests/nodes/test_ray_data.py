"""Jobs of Ray Data on three nodes of this machine: results, runtimes of nodes, a node that goes in the middle."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from conftest_cluster import cluster_of, need_ray
from small_models import mlp, mlp_reference

need_ray()
